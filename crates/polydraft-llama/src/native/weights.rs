//! Weights of a model.

use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::calls::{SendPtr, call, catch_exception, has_ended};
use super::{c_path, rpc, start, take_logged_errors, throwing};
use crate::{Error, LlamaOptions, Result, Split};

/// Weights of a model.
#[derive(Debug)]
pub(crate) struct Weights(pub(super) NonNull<sys::llama_model>);

// SAFETY: a llama.cpp model is not bound to a thread, and `Weights` gives out no shared access.
unsafe impl Send for Weights {}

impl Drop for Weights {
    fn drop(&mut self) {
        if !has_ended() {
            // SAFETY: no other pointer to the model is used: contexts are freed before it (see
            // `Context`). Freeing notifies remote servers; if one is lost, the model is leaked.
            let model = unsafe { SendPtr::new(self.0.as_ptr()) };
            // SAFETY: `llama_model_load_from_file` returned the pointer; this is its last use.
            let _ = call(move || {
                catch_exception(|| unsafe { throwing::llama_model_free(model.take()) })
            });
        }
    }
}

impl Weights {
    /// Loads a file whose header was checked.
    pub fn load(path: &Path, options: &LlamaOptions) -> Result<Self> {
        start();
        let name = c_path(path)?;
        let options = options.clone();
        let refused = |problem: String| {
            let problem = if problem.is_empty() {
                "the file could not be loaded".to_owned()
            } else {
                problem
            };
            Error::Refused { path: path.to_owned(), problem }
        };
        let loaded = call(move || {
            let mut devices = rpc::devices_of(&options.rpc)?;
            let mut params = Params::new(&options)?;
            params.raw.devices = devices.as_mut_ptr();
            // SAFETY:
            // - `name` ends in 0;
            // - the name, the shares and the devices live until the model is loaded;
            // - the devices end with a null.
            let model = catch_exception(|| unsafe {
                throwing::llama_model_load_from_file(name.as_ptr(), params.raw)
            });
            // SAFETY: the pointer is used only by the caller, after this call.
            Ok::<_, Error>(model.map(|model| unsafe { SendPtr::new(model) }))
        })??;
        let model = loaded.map_err(refused)?.take();
        NonNull::new(model).map(Self).ok_or_else(|| refused(take_logged_errors()))
    }

    /// Number of tokens in the vocabulary, the length of a vector of logits.
    pub fn vocabulary(&self) -> usize {
        // SAFETY: the model is alive.
        let tokens =
            unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.0.as_ptr())) };
        usize::try_from(tokens).unwrap_or(0)
    }

    /// Number of decoder blocks.
    pub fn layers(&self) -> usize {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_layer(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_embd(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// Context length that the model was trained for.
    pub fn trained_context(&self) -> usize {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_ctx_train(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// Width of the sliding window, if some layers have one.
    pub fn window(&self) -> Option<usize> {
        // SAFETY: the model is alive.
        usize::try_from(unsafe { sys::llama_model_n_swa(self.0.as_ptr()) })
            .ok()
            .filter(|window| *window > 0)
    }

    /// Whether the model has a recurrent state per sequence, which cannot be rolled back, in
    /// addition to the KV cache or in its place.
    pub fn has_state(&self) -> bool {
        // SAFETY: the model is alive.
        unsafe {
            sys::llama_model_is_recurrent(self.0.as_ptr())
                || sys::llama_model_is_hybrid(self.0.as_ptr())
        }
    }

    /// Kind of the model, if it cannot continue sequences.
    pub fn unsupported_kind(&self) -> Option<&'static str> {
        let model = self.0.as_ptr();
        // SAFETY: the model is alive.
        unsafe {
            if sys::llama_model_has_encoder(model) || !sys::llama_model_has_decoder(model) {
                Some("a model with an encoder")
            } else if sys::llama_model_is_diffusion(model) {
                Some("a model that writes by diffusion")
            } else {
                None
            }
        }
    }
}

/// Parameters for loading a model.
struct Params {
    raw: sys::llama_model_params,
    /// Proportions that `raw` points to.
    _shares: Vec<f32>,
}

impl Params {
    fn new(options: &LlamaOptions) -> Result<Self> {
        // SAFETY: the functions have no preconditions.
        let (mut raw, devices) =
            unsafe { (sys::llama_model_default_params(), sys::llama_max_devices()) };
        let mut shares = vec![0.0; devices];
        raw.n_gpu_layers = match options.gpu_layers {
            None => -1,
            Some(layers) => i32::try_from(layers).unwrap_or(i32::MAX),
        };
        raw.main_gpu = i32::try_from(options.main_gpu).unwrap_or(i32::MAX);
        raw.split_mode = match &options.split {
            Split::None => sys::LLAMA_SPLIT_MODE_NONE,
            Split::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
            Split::Row => sys::LLAMA_SPLIT_MODE_ROW,
            Split::Shares(proportions) => {
                if proportions.len() > devices {
                    let expected = format!("shares of at most {devices} GPUs");
                    return Err(Error::Setting {
                        setting: "split",
                        expected,
                        got: proportions.len().to_string(),
                    });
                }
                shares[..proportions.len()].copy_from_slice(proportions);
                raw.tensor_split = shares.as_ptr();
                sys::LLAMA_SPLIT_MODE_LAYER
            }
        };
        Ok(Self { raw, _shares: shares })
    }
}
