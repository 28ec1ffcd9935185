//! Hidden states of the target that a draft head reads.

use polydraft_engine::{Error as EngineError, HiddenState, Model, Sequence, hidden_states};

type Read<T> = Result<T, String>;

/// Hidden states after the given layers, in ascending order.
pub(super) fn states_after(mut layers: Vec<usize>) -> Read<Vec<HiddenState>> {
    layers.sort_unstable();
    match layers.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("expected distinct layers, got {} twice", pair[0])),
        None => Ok(layers.into_iter().map(HiddenState::After).collect()),
    }
}

/// Default hidden states: after the second, the middle and the last but two layers.
pub(super) fn default_hidden_states(layers: usize) -> Read<Vec<HiddenState>> {
    let numbers = vec![2, layers / 2, layers.saturating_sub(3)];
    match numbers.is_sorted_by(|a, b| a < b) {
        true => states_after(numbers),
        false => Err(format!(
            "eagle_aux_hidden_state_layer_ids: expected layers, as the default needs a target of \
             more than {layers} layers, got none"
        )),
    }
}

/// Target states of tokens `received..known` of a sequence of `length` tokens; `width` numbers per
/// token.
///
/// # Errors
/// A target that captures other states, or has not computed the tokens.
pub(super) fn target_states(
    target: &dyn Model,
    sequence: Sequence,
    [received, known, length]: [usize; 3],
    width: usize,
) -> polydraft_engine::Result<Vec<f32>> {
    let features = hidden_states(target, sequence, received..known)?;
    if known >= length || features.len() != (known - received) * width {
        let numbers = features.len();
        return Err(EngineError::Setting {
            setting: "hidden states of the target",
            expected: "the captured states of tokens before the last",
            got: format!("{numbers} numbers, {width} a token, for {} tokens", known - received),
        });
    }
    Ok(features)
}
