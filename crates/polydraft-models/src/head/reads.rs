//! Which hidden states of its target a head reads, and how it gets them.

use polydraft_engine::{Error as EngineError, HiddenState, Model, Sequence, hidden_states};

type Read<T> = Result<T, String>;

/// States come from the lowest layer to the highest, whatever the order they are written in.
pub(super) fn in_order(mut layers: Vec<usize>) -> Read<Vec<HiddenState>> {
    layers.sort_unstable();
    match layers.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("expected layers that differ, got {} twice", pair[0])),
        None => Ok(layers.into_iter().map(HiddenState::After).collect()),
    }
}

/// The layers that heads read where nothing is said: the second, the middle one, the last but two.
pub(super) fn default_features(layers: usize) -> Read<Vec<HiddenState>> {
    let numbers = vec![2, layers / 2, layers.saturating_sub(3)];
    match numbers.is_sorted_by(|a, b| a < b) {
        true => in_order(numbers),
        false => Err(format!(
            "eagle_aux_hidden_state_layer_ids: expected layers for a target of only {layers}, got \
             none"
        )),
    }
}

/// The target's states of the tokens from number `told` to before `known`, of a sequence that has
/// `length` tokens; `width` numbers each.
///
/// # Errors
/// A target that captures others, or does not know so many.
pub(super) fn states(
    target: &dyn Model,
    of: Sequence,
    [told, known, length]: [usize; 3],
    width: usize,
) -> polydraft_engine::Result<Vec<f32>> {
    let features = hidden_states(target, of, told..known)?;
    if known >= length || features.len() != (known - told) * width {
        let numbers = features.len();
        return Err(EngineError::Setting {
            setting: "hidden states of the target",
            expected: "those that were asked for, of tokens before the last",
            got: format!("{numbers} numbers, {width} a token, for {} tokens", known - told),
        });
    }
    Ok(features)
}
