//! Hidden states of the target that a draft head reads.

use polydraft_engine::{Error as EngineError, HiddenState, Model, Sequence, hidden_states};

type Read<T> = Result<T, String>;

/// Hidden states after the given layers, in ascending order.
pub(super) fn in_order(mut layers: Vec<usize>) -> Read<Vec<HiddenState>> {
    layers.sort_unstable();
    match layers.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("expected distinct layers, got {} twice", pair[0])),
        None => Ok(layers.into_iter().map(HiddenState::After).collect()),
    }
}

/// The layers that heads read where nothing is json: the second, the middle one, the last but two.
pub(super) fn default_features(layers: usize) -> Read<Vec<HiddenState>> {
    let numbers = vec![2, layers / 2, layers.saturating_sub(3)];
    match numbers.is_sorted_by(|a, b| a < b) {
        true => in_order(numbers),
        false => Err(format!(
            "eagle_aux_hidden_state_layer_ids: expected layers, as the default needs a target of \
             more than {layers} layers, got none"
        )),
    }
}

/// The target's states of the tokens from number `received` to before `known`, of a sequence that has
/// `length` tokens; `width` numbers each.
///
/// # Errors
/// A target that captures others, or does not know so many.
pub(super) fn target_states(
    target: &dyn Model,
    of: Sequence,
    [received, known, length]: [usize; 3],
    width: usize,
) -> polydraft_engine::Result<Vec<f32>> {
    let features = hidden_states(target, of, received..known)?;
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
