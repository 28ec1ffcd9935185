// llama.cpp's own loop, and its passes by width: what `llama_cuda.py` compares polydraft with.
//
//     llama_passes MODEL.gguf GPU_LAYERS
//
// Prints JSON: the greedy tokens after a short text, tokens per second of decoding (median of five
// runs of 128), milliseconds of passes over 1 to 64 tokens with logits of each, when one width is
// repeated and when widths change from pass to pass.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llama.h"

namespace {

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Session {
    llama_context * context;
    int vocabulary;
    llama_batch batch;

    // Tokens at positions from `begin` of the one sequence, logits of each; the last row's likeliest.
    llama_token pass(const std::vector<llama_token> & tokens, int begin) {
        batch.n_tokens = int(tokens.size());
        for (int i = 0; i < batch.n_tokens; i++) {
            batch.token[i] = tokens[i];
            batch.pos[i] = begin + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(context, batch) != 0) {
            std::fprintf(stderr, "llama_decode failed\n");
            std::exit(1);
        }
        const float * row = llama_get_logits_ith(context, batch.n_tokens - 1);
        return llama_token(std::max_element(row, row + vocabulary) - row);
    }

    void forget(int from) { llama_memory_seq_rm(llama_get_memory(context), 0, from, -1); }
};

}  // namespace

int main(int count, char ** words) {
    if (count != 3) {
        std::fprintf(stderr, "expected MODEL.gguf GPU_LAYERS\n");
        return 2;
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    ggml_backend_load_all();
    auto model_options = llama_model_default_params();
    model_options.n_gpu_layers = std::atoi(words[2]);
    llama_model * model = llama_model_load_from_file(words[1], model_options);
    auto options = llama_context_default_params();
    options.n_ctx = 4096;
    options.n_batch = options.n_ubatch = 512;
    Session session{llama_init_from_model(model, options),
                    llama_vocab_n_tokens(llama_model_get_vocab(model)), llama_batch_init(512, 0, 1)};
    std::vector<llama_token> text(256);
    for (size_t i = 0; i < text.size(); i++) text[i] = llama_token(1000 + 37 * i % 20000);

    std::vector<double> speeds;
    std::string greedy;
    for (int run = 0; run < 6; run++) {
        session.forget(0);
        llama_token next = session.pass(text, 0);
        const double begin = now();
        for (int i = 0; i < 128; i++) {
            if (run == 0) greedy += (i ? "," : "") + std::to_string(next);
            next = session.pass({next}, int(text.size()) + i);
        }
        // The first run warms up.
        if (run > 0) speeds.push_back(128 / (now() - begin));
    }
    const std::vector<int> widths{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 48, 64};
    std::vector<std::vector<double>> repeated(widths.size()), changing(widths.size());
    const auto time = [&](int width) {
        session.forget(int(text.size()));
        const double begin = now();
        session.pass({text.begin(), text.begin() + width}, int(text.size()));
        return 1e3 * (now() - begin);
    };
    for (size_t i = 0; i < widths.size(); i++) {
        for (int k = 0; k < 5; k++) time(widths[i]);
        for (int k = 0; k < 40; k++) repeated[i].push_back(time(widths[i]));
    }
    for (int k = 0; k < 40; k++) {
        for (size_t i = 0; i < widths.size(); i++) changing[i].push_back(time(widths[i]));
    }
    std::printf("{\"greedy\": [%s], \"tokens_per_second\": %.1f, \"passes\": [", greedy.c_str(), median(speeds));
    for (size_t i = 0; i < widths.size(); i++) {
        std::printf("%s{\"tokens\": %d, \"repeated_ms\": %.4f, \"changing_ms\": %.4f}", i ? ", " : "", widths[i],
                    median(repeated[i]), median(changing[i]));
    }
    std::printf("]}\n");
    return 0;
}
