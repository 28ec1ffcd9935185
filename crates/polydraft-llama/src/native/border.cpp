// What Rust cannot do at llama.cpp's border: take an exception, leave the process past C++'s own way out, and name functions that are
// C++'s own.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>

struct llama_context;
// As src/llama-ext.h declares them.
void llama_set_embeddings_layer_inp(llama_context * context, uint32_t layer, bool value);
float * llama_get_embeddings_layer_inp(llama_context * context, uint32_t layer);

// Calls work(data). Returns 1 if it threw, with what it said in `what`, which has room for `most` bytes.
extern "C" int polydraft_llama_try(void (*work)(void *), void * data, char * what, size_t most) {
    try {
        work(data);
        return 0;
    } catch (const std::exception & error) {
        std::snprintf(what, most, "%s", error.what());
    } catch (...) {
        std::snprintf(what, most, "an exception without a message");
    }
    return 1;
}

// Ends the process without waiting for threads that never end.
extern "C" void polydraft_llama_leave(int code) {
    std::_Exit(code);
}

// From now on the context keeps what goes into this layer, for every token of a pass.
extern "C" void polydraft_llama_watch(llama_context * context, uint32_t layer) {
    llama_set_embeddings_layer_inp(context, layer, true);
}

// What went into a watched layer in the last pass: [tokens, width].
extern "C" const float * polydraft_llama_watched(llama_context * context, uint32_t layer) {
    return llama_get_embeddings_layer_inp(context, layer);
}
