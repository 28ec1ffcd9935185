//! llama.cpp's RPC: this machine as a server, and the devices of other machines.

use std::ffi::{CStr, CString, c_char, c_void};

use llama_cpp_sys_2 as sys;

use super::calls::{call, catch_exception};
use super::devices::{self, Device};
use super::{start, take_logged_errors, throwing};
use crate::{Error, Result};

type AddServer = unsafe extern "C-unwind" fn(endpoint: *const c_char) -> sys::ggml_backend_reg_t;
type StartServer = unsafe extern "C-unwind" fn(
    endpoint: *const c_char,
    cache: *const c_char,
    threads: usize,
    count: usize,
    devices: *mut Device,
);

const NO_RPC: &str = "a llama.cpp that was built without RPC: build with GGML_RPC=ON";

fn refused(server: &str, got: impl Into<String>) -> Error {
    Error::Setting { setting: "rpc", expected: format!("a server at {server}"), got: got.into() }
}

/// Looks up a function of llama.cpp's RPC; `None` in builds without it.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the names end in 0; `rpc` is not null where it is used.
    let found = unsafe {
        let rpc = sys::ggml_backend_reg_by_name(c"RPC".as_ptr());
        if rpc.is_null() {
            return None;
        }
        sys::ggml_backend_reg_get_proc_address(rpc, name.as_ptr())
    };
    Some(found).filter(|found| !found.is_null())
}

/// Devices of a server.
pub(super) fn devices(server: &str) -> Result<Vec<Device>> {
    let add = function(c"ggml_backend_rpc_add_server").ok_or_else(|| refused(server, NO_RPC))?;
    // SAFETY: `AddServer` is the declaration in ggml-rpc.h.
    let add = unsafe { std::mem::transmute::<*mut c_void, AddServer>(add) };
    let endpoint = CString::new(server).map_err(|_| refused(server, "a name with a zero byte"))?;
    // SAFETY: the name ends in 0 and lives until the call returns.
    let added = catch_exception(|| unsafe { add(endpoint.as_ptr()) })
        .map_err(|message| refused(server, message))?;
    if added.is_null() {
        return Err(refused(server, "a server without devices"));
    }
    // SAFETY: `added` is not null, and llama.cpp keeps it as long as the process lives; the indices
    // are below the number of devices.
    unsafe {
        throwing::ggml_backend_register(added);
        let count = sys::ggml_backend_reg_dev_count(added);
        Ok((0..count).map(|index| sys::ggml_backend_reg_dev_get(added, index)).collect())
    }
}

/// Devices of a model, with a null after the last, for `llama_model_params.devices`: those of
/// `servers` in their order, then this machine's GPUs. A model without servers gets no device of
/// another machine, even if another model has added one. Must run on the thread that calls
/// llama.cpp.
///
/// # Errors
/// A build without RPC; a server without devices or with another protocol version. llama.cpp aborts
/// if a server cannot be reached.
pub(super) fn devices_of(servers: &[String]) -> Result<Vec<Device>> {
    let mut all = Vec::new();
    for server in servers {
        all.extend(devices(server)?);
    }
    all.extend(devices::local_gpus());
    all.push(std::ptr::null_mut());
    Ok(all)
}

/// Lets other machines compute with this one's GPUs, or with its CPU if it has none, until the
/// process ends. Serves one client at a time. llama.cpp prints its address and its clients to
/// standard output.
///
/// # Errors
/// A build without RPC; an address that cannot be bound.
pub fn serve_rpc(endpoint: &str, threads: usize) -> Result<()> {
    start();
    let refused =
        |got| Error::Setting { setting: "rpc", expected: format!("to listen at {endpoint}"), got };
    let serve =
        function(c"ggml_backend_rpc_start_server").ok_or_else(|| refused(NO_RPC.to_owned()))?;
    // SAFETY: `StartServer` is the declaration in ggml-rpc.h.
    let serve = unsafe { std::mem::transmute::<*mut c_void, StartServer>(serve) };
    let name = CString::new(endpoint).map_err(|_| refused("a name with a zero byte".to_owned()))?;
    let ended = call(move || {
        let mut devices = devices::local_gpus();
        if devices.is_empty() {
            // SAFETY: the function has no preconditions.
            let processor =
                unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) };
            devices.push(processor);
        }
        // SAFETY:
        // - the name ends in 0;
        // - the name and the devices live until the call returns;
        // - the length is that of the devices.
        catch_exception(|| unsafe {
            serve(name.as_ptr(), std::ptr::null(), threads, devices.len(), devices.as_mut_ptr());
        })
    })?;
    // The call returns only if it failed; the reason is logged.
    let problem = ended.err().unwrap_or_else(take_logged_errors);
    Err(refused(if problem.is_empty() { "a server that stopped".to_owned() } else { problem }))
}
