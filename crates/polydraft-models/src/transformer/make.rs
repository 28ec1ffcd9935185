//! Other matrices in the places of a layer's.

use std::borrow::Cow;

use crate::error::Result;
use crate::linear::{Linear, Matrix};

/// A name of a product inside a layer.
pub(crate) type Name = Cow<'static, str>;

/// Makes another product, or another matrix, of one of this name.
pub(crate) struct Make<'a> {
    pub linear: &'a dyn Fn(&str, &Linear) -> Result<Linear>,
    pub matrix: &'a dyn Fn(&str, &Matrix) -> Result<Matrix>,
}
