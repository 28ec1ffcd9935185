//! GPUs of this machine.

use std::ffi::CStr;

use llama_cpp_sys_2 as sys;

pub(super) type Device = sys::ggml_backend_dev_t;

/// GPUs of this machine: discrete ones, or integrated ones if there are none.
pub(super) fn local_gpus() -> Vec<Device> {
    // SAFETY:
    // - the indices are below the number of devices;
    // - llama.cpp's names end in 0 and live as long as the process.
    unsafe {
        let all = (0..sys::ggml_backend_dev_count()).map(|index| sys::ggml_backend_dev_get(index));
        let local = all.filter(|device| {
            let name = sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(*device));
            !CStr::from_ptr(name).to_bytes().starts_with(b"RPC")
        });
        let local: Vec<Device> = local.collect();
        let of_kind = |kind| {
            let matching =
                local.iter().filter(move |device| sys::ggml_backend_dev_type(**device) == kind);
            matching.copied().collect::<Vec<_>>()
        };
        let discrete = of_kind(sys::GGML_BACKEND_DEVICE_TYPE_GPU);
        if discrete.is_empty() { of_kind(sys::GGML_BACKEND_DEVICE_TYPE_IGPU) } else { discrete }
    }
}
