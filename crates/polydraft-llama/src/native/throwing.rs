//! Functions of llama.cpp that may throw, declared so that exceptions may unwind through them; the
//! bindings declare them as functions that never throw.

use std::ffi::c_char;

use llama_cpp_sys_2::{
    ggml_backend_reg_t, llama_batch, llama_context, llama_context_params, llama_memory_t,
    llama_model, llama_model_params, llama_model_quantize_params, llama_pos, llama_seq_id,
};

// SAFETY: the declarations match those in llama.cpp's headers and in `border.cpp`.
unsafe extern "C-unwind" {
    /// Makes the context store the input of this layer, for every token of a pass, from now on.
    pub fn polydraft_llama_capture_input(context: *mut llama_context, layer: u32);
    /// Input of a captured layer in the last pass: `[tokens, width]`.
    pub fn polydraft_llama_captured_input(context: *mut llama_context, layer: u32) -> *const f32;
    pub fn ggml_backend_register(server: ggml_backend_reg_t);
    pub fn llama_decode(context: *mut llama_context, batch: llama_batch) -> i32;
    pub fn llama_free(context: *mut llama_context);
    pub fn llama_init_from_model(
        model: *mut llama_model,
        params: llama_context_params,
    ) -> *mut llama_context;
    pub fn llama_memory_seq_cp(
        memory: llama_memory_t,
        from: llama_seq_id,
        to: llama_seq_id,
        start: llama_pos,
        end: llama_pos,
    );
    pub fn llama_memory_seq_rm(
        memory: llama_memory_t,
        id: llama_seq_id,
        start: llama_pos,
        end: llama_pos,
    ) -> bool;
    pub fn llama_model_free(model: *mut llama_model);
    pub fn llama_model_load_from_file(
        path: *const c_char,
        params: llama_model_params,
    ) -> *mut llama_model;
    pub fn llama_model_quantize(
        from: *const c_char,
        to: *const c_char,
        params: *const llama_model_quantize_params,
    ) -> u32;
    pub fn llama_synchronize(context: *mut llama_context);
}
