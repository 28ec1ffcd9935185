// What Rust cannot do itself with llama.cpp: catch an exception, end the process without C++'s exit handlers, and call functions with
// C++ linkage.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

struct llama_context;
// As declared in src/llama-ext.h.
void llama_set_embeddings_layer_inp(llama_context * context, uint32_t layer, bool value);
float * llama_get_embeddings_layer_inp(llama_context * context, uint32_t layer);

// Calls work(data). Returns 1 if it threw an exception, with its message in `message`, a buffer of `size` bytes.
extern "C" int polydraft_llama_try(void (*work)(void *), void * data, char * message, size_t size) {
    try {
        work(data);
        return 0;
    } catch (const std::exception & error) {
        std::snprintf(message, size, "%s", error.what());
    } catch (...) {
        std::snprintf(message, size, "an exception without a message");
    }
    return 1;
}

// Ends the process without waiting for threads.
extern "C" void polydraft_llama_leave(int code) {
    std::_Exit(code);
}

// Makes the context store the input of this layer, for every token of a pass, from now on.
extern "C" void polydraft_llama_capture_input(llama_context * context, uint32_t layer) {
    llama_set_embeddings_layer_inp(context, layer, true);
}

// Input of a captured layer in the last pass: [tokens, width].
extern "C" const float * polydraft_llama_captured_input(llama_context * context, uint32_t layer) {
    return llama_get_embeddings_layer_inp(context, layer);
}
