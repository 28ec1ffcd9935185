//! Conversion of a GGUF file to another type, with llama.cpp's quantisation.

use std::path::Path;

use llama_cpp_sys_2 as sys;

use super::calls::{call, catch_exception};
use super::{c_path, start, take_logged_errors, throwing};
use crate::{Error, Result};

/// Types that a file can be converted to, by the names that llama.cpp's programs use.
const TYPES: [(&str, sys::llama_ftype); 6] = [
    ("f32", sys::LLAMA_FTYPE_ALL_F32),
    ("f16", sys::LLAMA_FTYPE_MOSTLY_F16),
    ("q8_0", sys::LLAMA_FTYPE_MOSTLY_Q8_0),
    ("q4_0", sys::LLAMA_FTYPE_MOSTLY_Q4_0),
    ("q4_k_m", sys::LLAMA_FTYPE_MOSTLY_Q4_K_M),
    ("q2_k", sys::LLAMA_FTYPE_MOSTLY_Q2_K),
];

/// Converts the model in `from` to another type, such as `q4_0`, and writes it to `to`: a smaller
/// type may draft for the original.
///
/// # Errors
/// An unknown type; files that cannot be read or written.
pub fn quantise(from: &Path, to: &Path, kind: &str) -> Result<()> {
    let Some((_, ftype)) = TYPES.iter().find(|(name, _)| *name == kind) else {
        let names: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        return Err(Error::Setting {
            setting: "type",
            expected: names.join(", "),
            got: kind.to_owned(),
        });
    };
    polydraft_gguf::Gguf::open(from)?;
    start();
    let (source, target) = (c_path(from)?, c_path(to)?);
    let ftype = *ftype;
    let code = call(move || {
        // SAFETY: both names end in 0, and they and the parameters live until the calls return.
        catch_exception(|| unsafe {
            let mut params = sys::llama_model_quantize_default_params();
            params.ftype = ftype;
            params.allow_requantize = true;
            throwing::llama_model_quantize(source.as_ptr(), target.as_ptr(), &params)
        })
    })?;
    let refused = |problem| Err(Error::Refused { path: from.to_owned(), problem });
    match code {
        Ok(0) => Ok(()),
        Ok(_) => refused(take_logged_errors()),
        Err(problem) => refused(problem),
    }
}
