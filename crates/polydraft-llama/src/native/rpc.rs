//! llama.cpp's RPC: this machine as a server, and the devices of others.

use std::ffi::{CStr, CString, c_char, c_void};

use llama_cpp_sys_2 as sys;

use super::calls::{attempt, call};
use super::devices::{self, Device};
use super::{said, start, throwing};
use crate::{Error, Result};

type AddServer = unsafe extern "C-unwind" fn(endpoint: *const c_char) -> sys::ggml_backend_reg_t;
type StartServer = unsafe extern "C-unwind" fn(
    endpoint: *const c_char,
    cache: *const c_char,
    threads: usize,
    count: usize,
    devices: *mut Device,
);

const WITHOUT: &str = "a llama.cpp that was built without RPC: build with GGML_RPC=ON";

fn refused(server: &str, got: impl Into<String>) -> Error {
    Error::Setting { setting: "rpc", expected: format!("a server at {server}"), got: got.into() }
}

/// A function of llama.cpp's RPC, which is there if it was built with it.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: plain calls; the names end in 0.
    let found = unsafe {
        let rpc = sys::ggml_backend_reg_by_name(c"RPC".as_ptr());
        if rpc.is_null() {
            return None;
        }
        sys::ggml_backend_reg_get_proc_address(rpc, name.as_ptr())
    };
    Some(found).filter(|found| !found.is_null())
}

/// The devices of a server.
pub(super) fn devices(server: &str) -> Result<Vec<Device>> {
    let add = function(c"ggml_backend_rpc_add_server").ok_or_else(|| refused(server, WITHOUT))?;
    // SAFETY: ggml-rpc.h declares this function so.
    let add = unsafe { std::mem::transmute::<*mut c_void, AddServer>(add) };
    let endpoint = CString::new(server).map_err(|_| refused(server, "a name with a zero byte"))?;
    // SAFETY: the name ends in 0.
    let added =
        attempt(|| unsafe { add(endpoint.as_ptr()) }).map_err(|said| refused(server, said))?;
    if added.is_null() {
        return Err(refused(server, "one that has no devices"));
    }
    // SAFETY: llama.cpp has just made it, and keeps it as long as the process lives.
    unsafe {
        throwing::ggml_backend_register(added);
        let count = sys::ggml_backend_reg_dev_count(added);
        Ok((0..count).map(|index| sys::ggml_backend_reg_dev_get(added, index)).collect())
    }
}

/// The devices of a model, with a null after the last, for `llama_model_params.devices`: those of
/// `servers` in their order, then this machine's GPUs. Of a model without servers none of other
/// machines', which a model beside it may have brought in. To be called on the thread that calls
/// llama.cpp.
///
/// # Errors
/// A build without RPC; a server that has no devices or speaks another version. One that cannot be
/// reached is llama.cpp's end.
pub(super) fn devices_of(servers: &[String]) -> Result<Vec<Device>> {
    let mut all = Vec::new();
    for server in servers {
        all.extend(devices(server)?);
    }
    all.extend(devices::own());
    all.push(std::ptr::null_mut());
    Ok(all)
}

/// Lets other machines compute with this one's GPUs, or with its CPU where there are none, until
/// the process is ended. One client at a time. llama.cpp says on standard output where it listens
/// and who comes.
///
/// # Errors
/// A build without RPC; an address that cannot be listened at.
pub fn serve_rpc(endpoint: &str, threads: usize) -> Result<()> {
    start();
    let refused =
        |got| Error::Setting { setting: "rpc", expected: format!("to listen at {endpoint}"), got };
    let serve =
        function(c"ggml_backend_rpc_start_server").ok_or_else(|| refused(WITHOUT.to_owned()))?;
    // SAFETY: ggml-rpc.h declares this function so.
    let serve = unsafe { std::mem::transmute::<*mut c_void, StartServer>(serve) };
    let name = CString::new(endpoint).map_err(|_| refused("a name with a zero byte".to_owned()))?;
    let ended = call(move || {
        let mut devices = devices::own();
        if devices.is_empty() {
            // SAFETY: a plain call.
            let processor =
                unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
            devices.push(processor);
        }
        // SAFETY: the name ends in 0, and it and the devices live until the call returns.
        attempt(|| unsafe {
            serve(name.as_ptr(), std::ptr::null(), threads, devices.len(), devices.as_mut_ptr());
        })
    })?;
    // It returns where it failed, and says why on standard error.
    let problem = ended.err().unwrap_or_else(said);
    Err(refused(if problem.is_empty() { "a server that stopped".to_owned() } else { problem }))
}
