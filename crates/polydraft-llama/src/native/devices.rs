//! This machine's GPUs, where a model's layers may be.

use std::ffi::CStr;

use llama_cpp_sys_2 as sys;

pub(super) type Device = sys::ggml_backend_dev_t;

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
