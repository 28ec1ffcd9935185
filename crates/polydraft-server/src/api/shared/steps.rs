//! Steps of the engine as JSON, for visualization.

use polydraft::Token;
use polydraft_engine::Trace;
use polydraft_text::Tokenizer;
use serde_json::{Value, json};

/// Object of a step: the nodes of the tree, each with the draft's and the target's distribution of
/// the next token, and the outcome.
pub fn step_object(tokenizer: &Tokenizer, trace: &Trace) -> Value {
    let token = |token: Token| tokenizer.decode(&[token]).unwrap_or_default();
    let probs = |probs: &[(Token, f64)]| -> Value {
        probs.iter().map(|&(id, p)| json!({ "id": id, "text": token(id), "p": p })).collect()
    };
    let nodes: Value = trace
        .nodes
        .iter()
        .map(|node| {
            let drawn = node.drawn.as_ref().map(|drawn| {
                let (id, text) = (drawn.token, token(drawn.token));
                json!({ "parent": drawn.parent, "id": id, "text": text, "draft": drawn.draft,
                    "target": drawn.target })
            });
            let (draft, target) = (probs(&node.draft), probs(&node.target));
            let shares = node.shares.iter().map(|(id, parts)| {
                json!({ "id": id, "text": token(*id),
                "parts": parts })
            });
            let shares: Value = shares.collect();
            json!({ "drawn": drawn, "draws": node.draws, "draft": draft, "target": target,
                "overlap": node.overlap,
                "shares": shares })
        })
        .collect();
    let emitted = json!({ "id": trace.token, "text": token(trace.token) });
    json!({ "nodes": nodes, "accepted": trace.accepted, "emitted": emitted })
}
