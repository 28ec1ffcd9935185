"""Sums over outputs of what 'polydraft generate --json' says."""

import harness


class Outputs:
    """Outputs of one way to decode."""

    def __init__(self):
        self.calls = self.tokens = self.nodes = self.ms = self.draft_ms = self.emitted = 0.0

    def generate(self, program, target, prompt, options):
        """Adds the program's answer to a prompt; ends with its message where it fails."""
        own = ["--backend", "native", "--prompt", prompt, *options]
        result = harness.generate(program, target, *own)
        stats = result["stats"]
        self.calls += stats["target_calls"]
        self.tokens += stats["target_calls"] * stats["block_efficiency"]
        self.nodes += stats["target_calls"] * stats["nodes_per_call"]
        self.ms += stats["time_ms"]["total"]
        self.draft_ms += stats["time_ms"]["draft"]
        self.emitted += len(result["tokens"])

    def tokens_per_pass(self):
        return self.tokens / self.calls

    def nodes_per_pass(self):
        return self.nodes / self.calls

    def ms_per_token(self):
        return self.ms / self.emitted
