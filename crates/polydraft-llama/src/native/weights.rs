//! A model's weights.

use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::calls::{Carried, attempt, call, has_ended};
use super::{c_path, rpc, said, start, throwing};
use crate::{Error, LlamaOptions, Result, Split};

/// A model's weights.
#[derive(Debug)]
pub(crate) struct Weights(pub(super) NonNull<sys::llama_model>);

// SAFETY: nothing in a model belongs to a thread; we hand out no shared access.
unsafe impl Send for Weights {}

impl Drop for Weights {
    fn drop(&mut self) {
        if !has_ended() {
            // SAFETY: it was made by llama.cpp and nobody else has it; contexts are gone before
            // (see `Context`). Servers may be told, and may be lost: then it is not freed.
            let model = unsafe { Carried::new(self.0.as_ptr()) };
            // SAFETY: as above; this is its last use.
            let _ = call(move || attempt(|| unsafe { throwing::llama_model_free(model.take()) }));
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
            // SAFETY: `name` ends in 0, and it, the shares and the devices live until the model is
            // loaded.
            let model = attempt(|| unsafe {
                throwing::llama_model_load_from_file(name.as_ptr(), params.raw)
            });
            // SAFETY: it goes to its owner.
            Ok::<_, Error>(model.map(|model| unsafe { Carried::new(model) }))
        })??;
        let model = loaded.map_err(refused)?.take();
        NonNull::new(model).map(Self).ok_or_else(|| refused(said()))
    }

    /// Tokens of the vocabulary, the width of a vector of logits.
    pub fn vocabulary(&self) -> usize {
        // SAFETY: the model lives.
        let tokens =
            unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.0.as_ptr())) };
        usize::try_from(tokens).unwrap_or(0)
    }

    /// Decoder blocks.
    pub fn layers(&self) -> usize {
        // SAFETY: the model lives.
        usize::try_from(unsafe { sys::llama_model_n_layer(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// Numbers of the residual stream.
    pub fn hidden(&self) -> usize {
        // SAFETY: the model lives.
        usize::try_from(unsafe { sys::llama_model_n_embd(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// Tokens that it was trained for.
    pub fn trained_context(&self) -> usize {
        // SAFETY: the model lives.
        usize::try_from(unsafe { sys::llama_model_n_ctx_train(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// The width of its sliding window, if some layers have one.
    pub fn window(&self) -> Option<usize> {
        // SAFETY: the model lives.
        usize::try_from(unsafe { sys::llama_model_n_swa(self.0.as_ptr()) })
            .ok()
            .filter(|window| *window > 0)
    }

    /// Whether it has a recurrent state of a sequence, which cannot be taken back, beside the KV
    /// cache or in place of it.
    pub fn has_state(&self) -> bool {
        // SAFETY: the model lives.
        unsafe {
            sys::llama_model_is_recurrent(self.0.as_ptr())
                || sys::llama_model_is_hybrid(self.0.as_ptr())
        }
    }

    /// Why it cannot continue sequences, if it cannot.
    pub fn unfit(&self) -> Option<&'static str> {
        let model = self.0.as_ptr();
        // SAFETY: the model lives.
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

/// What a model is loaded with.
struct Params {
    raw: sys::llama_model_params,
    /// What `raw` points to.
    _shares: Vec<f32>,
}

impl Params {
    fn new(options: &LlamaOptions) -> Result<Self> {
        // SAFETY: plain calls.
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
            Split::Shares(given) => {
                if given.len() > devices {
                    let expected = format!("shares of at most {devices} GPUs");
                    return Err(Error::Setting {
                        setting: "split",
                        expected,
                        got: given.len().to_string(),
                    });
                }
                shares[..given.len()].copy_from_slice(given);
                raw.tensor_split = shares.as_ptr();
                sys::LLAMA_SPLIT_MODE_LAYER
            }
        };
        Ok(Self { raw, _shares: shares })
    }
}
