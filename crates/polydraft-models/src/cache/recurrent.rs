//! The state of the recurrent layers for one sequence.
//!
//! Problem: a recurrent layer overwrites its state with each token, and the state takes a megabyte
//! or more. It cannot be stored for every token, and a rejected draft cannot be removed from it.
//! Method: store the state after a final token, and the inputs of the tokens after it, which are
//! small; nodes of a draft tree are stored with their parents. A pass replays the stored inputs
//! from the state on. Inputs of tokens that are final by then update the state; the others are
//! dropped. So a commit copies nothing, and a rejected node never enters the state. Checkpoints of
//! older states are stored at the end of a prompt, and at intervals that bound their memory by that
//! of the KV cache: a truncated sequence resumes from the last checkpoint before the cut.
//! Source: the parent pointers of SGLang's trees over such models, and the inputs of a chain that
//! vLLM stores to recompute it (ReplaySSM). Deviations: 1. Inputs are stored instead of states, so
//! that no state is stored per node. 2. There is no separate replay: the next pass, which reads the
//! state anyway, applies the final tokens.

use std::sync::Arc;

use polydraft_kernels::{Error, Mask, RecurrentState, Result, TreeToken, Walk};

/// Sizes of the stored inputs and states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateShape {
    /// Number of recurrent layers.
    pub layers: usize,
    /// Channels of the convolution.
    pub channels: usize,
    /// Number of previous tokens that the convolution reads.
    pub window: usize,
    /// Width of the inputs that update the memory; 0 for layers without a memory.
    pub inputs: usize,
    /// Size of the memory; 0 for layers without one.
    pub memory: usize,
    /// Minimum number of tokens between checkpoints.
    pub spacing: usize,
}

/// The state of all layers after `tokens` tokens.
#[derive(Debug, Clone)]
struct State {
    tokens: usize,
    layers: Vec<LayerState>,
}

#[derive(Debug, Clone)]
struct LayerState {
    /// Inputs of the convolution for the last tokens, `[window, channels]`.
    window: Vec<f32>,
    memory: Vec<f32>,
}

/// Inputs of one layer for the tokens after the state.
#[derive(Debug, Clone, Default)]
struct Inputs {
    /// `[tokens, channels]`
    channels: Vec<f32>,
    /// `[tokens, inputs]`
    memory: Vec<f32>,
}

/// The part of the tokens after the state that a pass replays.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// Index of the first new token.
    new: usize,
    /// Number of leading tokens that update the state.
    committed: usize,
    /// The other tokens, depth first.
    tree: Vec<TreeToken>,
}

/// The state of a sequence, and the inputs of the tokens after it.
#[derive(Debug, Clone)]
pub(super) struct Recurrent {
    shape: StateShape,
    state: Arc<State>,
    /// Older states, at intervals of `spacing` tokens or more.
    checkpoints: Vec<Arc<State>>,
    /// The state at the end of the last prompt.
    prompt: Option<Arc<State>>,
    /// For each token after the state, the slot after its parent's.
    parents: Vec<usize>,
    inputs: Vec<Inputs>,
    plan: Plan,
    /// Whether a pass has begun and not ended. The state is invalid then, also if the pass failed.
    in_pass: bool,
}

impl Recurrent {
    pub fn new(shape: StateShape) -> Self {
        let layer = LayerState {
            window: vec![0.0; shape.window * shape.channels],
            memory: vec![0.0; shape.memory],
        };
        let state = State { tokens: 0, layers: vec![layer; shape.layers] };
        Self {
            shape,
            state: Arc::new(state),
            checkpoints: Vec::new(),
            prompt: None,
            parents: Vec::new(),
            inputs: vec![Inputs::default(); shape.layers],
            plan: Plan::default(),
            in_pass: false,
        }
    }

    /// Largest number of slots, at most `slots`, from which the computation can resume.
    pub fn resume_point(&self, slots: usize) -> usize {
        let after = slots.checked_sub(self.state.tokens);
        match after.is_some_and(|after| after <= self.parents.len()) && !self.in_pass {
            true => slots,
            false => self.checkpoint_before(slots).map_or(0, |state| state.tokens),
        }
    }

    /// The last stored state of at most `slots` tokens.
    fn checkpoint_before(&self, slots: usize) -> Option<&Arc<State>> {
        let stored = self.checkpoints.iter().chain(&self.prompt);
        stored.filter(|state| state.tokens <= slots).max_by_key(|state| state.tokens)
    }

    /// Resets to the last stored state of at most `slots` tokens.
    fn rewind(&mut self, slots: usize) {
        let empty = Self::new(self.shape).state;
        self.state = self.checkpoint_before(slots).cloned().unwrap_or(empty);
        self.checkpoints.retain(|state| state.tokens <= slots);
        self.prompt = self.prompt.take().filter(|state| state.tokens <= slots);
        self.truncate_inputs(0);
        self.in_pass = false;
    }

    /// Drops all but the first `tokens` tokens after the state.
    fn truncate_inputs(&mut self, tokens: usize) {
        self.parents.truncate(tokens);
        for inputs in &mut self.inputs {
            inputs.channels.truncate(tokens * self.shape.channels);
            inputs.memory.truncate(tokens * self.shape.inputs);
        }
    }

    /// Begins a pass over the tokens from slot `start` on, and drops what was stored for these
    /// slots. The first `committed` tokens of the sequence are final.
    pub fn begin_pass(&mut self, start: usize, masks: &[Mask], committed: usize) -> Result<()> {
        if self.resume_point(start) != start {
            return Err(Error::Shape {
                operation: "a recurrent layer's state",
                expected: format!("tokens from {} on", self.resume_point(start)),
                got: start.to_string(),
            });
        }
        if start < self.state.tokens || self.in_pass {
            self.rewind(start);
        }
        let (begin, new) = (self.state.tokens, start - self.state.tokens);
        self.truncate_inputs(new);
        self.parents.extend(masks.iter().map(|mask| match &mask.path[..] {
            [] => mask.context - 1,
            [.., parent, _] => parent + 1,
            [_] => mask.context,
        }));
        let committed = committed.saturating_sub(begin).min(self.parents.len());
        let tree = walk(&self.parents, begin, committed, new);
        self.plan = Plan { new, committed, tree };
        self.in_pass = true;
        Ok(())
    }

    /// Appends the inputs of the convolution of a layer for the new tokens.
    pub fn push_channels(&mut self, layer: usize, rows: &[f32]) {
        self.inputs[layer].channels.extend_from_slice(rows);
    }

    /// Appends the inputs that update the memory of a layer for the new tokens.
    pub fn push_inputs(&mut self, layer: usize, rows: &[f32]) {
        self.inputs[layer].memory.extend_from_slice(rows);
    }

    /// Window of the convolution of a layer for each new token, its own input last.
    pub fn windows(&self, layer: usize) -> impl Iterator<Item = Vec<&[f32]>> {
        let Self { shape, state, inputs, .. } = self;
        let (width, begin) = (shape.channels, state.tokens);
        let before = &state.layers[layer].window;
        (self.plan.new..self.parents.len()).map(move |token| {
            let mut window = Vec::with_capacity(shape.window + 1);
            let (mut token, mut old) = (Some(token), shape.window);
            for _ in 0..=shape.window {
                window.push(match token {
                    Some(row) => {
                        token = self.parents[row].checked_sub(begin + 1);
                        &inputs[layer].channels[row * width..][..width]
                    }
                    None => {
                        old -= 1;
                        &before[old * width..][..width]
                    }
                });
            }
            window.reverse();
            window
        })
    }

    /// Updates of a layer's memory in this pass.
    pub fn walk(&mut self, layer: usize) -> Walk<'_> {
        let Plan { new, committed, ref tree } = self.plan;
        let state = match committed {
            0 => RecurrentState::ReadOnly(&self.state.layers[layer].memory),
            _ => RecurrentState::Updated(&mut Arc::make_mut(&mut self.state).layers[layer].memory),
        };
        Walk { state, rows: &self.inputs[layer].memory, committed, tree, first_output: new }
    }

    /// Ends a pass after all layers are computed: the state is now the one after the final tokens.
    pub fn end_pass(&mut self, is_prompt: bool) {
        self.in_pass = false;
        let (committed, shape) = (self.plan.committed, self.shape);
        if committed > 0 {
            let state = Arc::make_mut(&mut self.state);
            state.tokens += committed;
            for (layer, inputs) in state.layers.iter_mut().zip(&mut self.inputs) {
                let end = committed * shape.channels;
                layer.window.extend_from_slice(&inputs.channels[..end]);
                let rest = layer.window.len() - shape.window * shape.channels;
                layer.window.drain(..rest);
                inputs.channels.drain(..end);
                inputs.memory.drain(..committed * shape.inputs);
            }
            self.parents.drain(..committed);
            self.plan = Plan::default();
        }
        let last = self.checkpoints.last().map_or(0, |state| state.tokens);
        if self.state.tokens >= last + shape.spacing {
            self.checkpoints.push(Arc::clone(&self.state));
        } else if is_prompt {
            self.prompt = Some(Arc::clone(&self.state));
        }
    }

    /// Moves the inputs of `slots` to consecutive slots from `start` on.
    pub fn compact(&mut self, start: usize, slots: &[usize]) {
        let begin = self.state.tokens;
        let Some(first) = start.checked_sub(begin) else { return };
        for (to, &from) in (first..).zip(slots) {
            let from = from - begin;
            self.parents[to] = begin + to;
            for inputs in &mut self.inputs {
                for (rows, width) in [
                    (&mut inputs.channels, self.shape.channels),
                    (&mut inputs.memory, self.shape.inputs),
                ] {
                    rows.copy_within(from * width..(from + 1) * width, to * width);
                }
            }
        }
        self.truncate_inputs(first + slots.len());
    }

    /// A copy for the first `slots` tokens.
    pub fn share(&self, slots: usize) -> Self {
        let mut other = self.clone();
        match other.resume_point(slots) == slots && slots >= other.state.tokens {
            true => other.truncate_inputs(slots - other.state.tokens),
            false => other.rewind(slots),
        }
        other
    }

    /// Drops the tokens after the first `slots`, except those that are part of the state.
    pub fn truncate(&mut self, slots: usize) {
        if let Some(after) = slots.checked_sub(self.state.tokens) {
            self.truncate_inputs(after);
        }
    }

    /// Size in bytes, including states that are shared with other sequences.
    pub fn bytes(&self) -> usize {
        let shape = self.shape;
        let state = shape.layers * (shape.window * shape.channels + shape.memory);
        let states = 1 + self.checkpoints.len() + usize::from(self.prompt.is_some());
        let tokens = shape.layers * (shape.channels + shape.inputs) * self.parents.len();
        (states * state + tokens) * size_of::<f32>()
    }
}

/// Tokens from `committed` on that are new or ancestors of new ones, depth first. `parents` are as
/// in [`Recurrent`]; `begin` is the slot of the first token.
fn walk(parents: &[usize], begin: usize, committed: usize, new: usize) -> Vec<TreeToken> {
    let parent = |token: usize| parents[token].checked_sub(begin + committed + 1);
    let mut is_needed = vec![false; parents.len()];
    for token in new.max(committed)..parents.len() {
        let mut next = Some(token);
        while let Some(token) = next.filter(|token| !is_needed[*token]) {
            is_needed[token] = true;
            next = parent(token).map(|above| above + committed);
        }
    }
    let mut children = vec![Vec::new(); parents.len() + 1];
    for token in (committed..parents.len()).rev().filter(|token| is_needed[*token]) {
        children[parent(token).map_or(0, |above| above + committed + 1)].push(token);
    }
    let below = |children: &mut Vec<usize>, depth| {
        let rows = std::mem::take(children).into_iter();
        rows.map(|row| TreeToken { row, depth }).collect::<Vec<_>>()
    };
    let (mut steps, mut open) = (Vec::new(), below(&mut children[0], 0));
    while let Some(step) = open.pop() {
        steps.push(step);
        open.append(&mut below(&mut children[step.row + 1], step.depth + 1));
    }
    steps
}
