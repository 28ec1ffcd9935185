//! Where a model's layers may be: this machine's GPUs, and other machines that run llama.cpp's
//! `rpc-server`.

use std::ffi::CStr;

use llama_cpp_sys_2 as sys;

use super::rpc;
use crate::Result;

pub(super) type Device = sys::ggml_backend_dev_t;

/// The devices of a model, with a null after the last, for `llama_model_params.devices`: those of
/// `servers` in their order, then this machine's GPUs. Of a model without servers none of other
/// machines', which a model beside it may have brought in. To be called on the thread that calls
/// llama.cpp.
///
/// # Errors
/// A build without RPC; a server that has no devices or speaks another version. One that cannot be
/// reached is llama.cpp's end.
pub(super) fn of(servers: &[String]) -> Result<Vec<Device>> {
    let mut devices = Vec::new();
    for server in servers {
        devices.extend(rpc::devices(server)?);
    }
    devices.extend(own());
    devices.push(std::ptr::null_mut());
    Ok(devices)
}

/// This machine's GPUs: discrete ones, or where there are none those that share the CPU's memory.
pub(super) fn own() -> Vec<Device> {
    // SAFETY: plain calls; llama.cpp's names end in 0 and live as long as the process.
    unsafe {
        let all = (0..sys::ggml_backend_dev_count()).map(|index| sys::ggml_backend_dev_get(index));
        let here = all.filter(|device| {
            let name = sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(*device));
            !CStr::from_ptr(name).to_bytes().starts_with(b"RPC")
        });
        let here: Vec<Device> = here.collect();
        let of = |kind| {
            let same =
                here.iter().filter(move |device| sys::ggml_backend_dev_type(**device) == kind);
            same.copied().collect::<Vec<_>>()
        };
        let cards = of(sys::GGML_BACKEND_DEVICE_TYPE_GPU);
        if cards.is_empty() { of(sys::GGML_BACKEND_DEVICE_TYPE_IGPU) } else { cards }
    }
}
