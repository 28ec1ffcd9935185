//! Replaces the matrices of a layer.

use std::borrow::Cow;

use crate::error::Result;
use crate::linear::{Linear, Matrix};

/// Name of a matrix inside a layer.
pub(crate) type MatrixName = Cow<'static, str>;

/// Makes the replacement of a linear layer or of a bare matrix, given its name.
pub(crate) struct MatrixMapper<'a> {
    pub linear: &'a dyn Fn(&str, &Linear) -> Result<Linear>,
    pub matrix: &'a dyn Fn(&str, &Matrix) -> Result<Matrix>,
}
