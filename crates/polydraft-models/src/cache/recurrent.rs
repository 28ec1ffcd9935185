//! What recurrent layers keep of one sequence.
//!
//! Problem: such a layer's state after a token is made of the state before it, and is a megabyte
//! or more: it cannot be kept for every token, and a rejected draft cannot be taken out of it.
//! Method: the state is kept after a token that is decided, together with the inputs of the tokens
//! after it, which are small: of a draft tree too, each with its parent. A pass goes from the state
//! through the inputs to what it computes; what has been decided by then changes the state, the
//! rest is forgotten. So a commit copies nothing, and a rejected node was never part of the state.
//! Older states are kept at the end of a prompt, and so far apart that they take no more memory
//! than the KV cache: a sequence that is cut goes on from the last one before the cut.
//! Source: the parent pointers of SGLang's trees over such models, and what vLLM keeps of a chain
//! to compute it again (ReplaySSM). Deviations: 1. Inputs are kept, not states, so that a tree's
//! memory does not grow with its nodes. 2. Nothing is computed again by itself: the next pass,
//! which reads the state anyway, takes in what was decided.

use std::sync::Arc;

use polydraft_kernels::{Error, Mask, Memory, Result, Step, Walk};

/// What is kept of a token, and of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateForm {
    /// How many layers there are.
    pub layers: usize,
    /// Numbers of a token that the convolution reads.
    pub channels: usize,
    /// Tokens before its own that it reads.
    pub window: usize,
    /// Numbers of a token that change the memory,
    pub inputs: usize,
    /// and the memory's; none where there is no memory.
    pub memory: usize,
    /// Tokens between two states that are kept at least.
    pub spacing: usize,
}

/// The state after some tokens.
#[derive(Debug, Clone)]
struct State {
    tokens: usize,
    layers: Vec<LayerState>,
}

#[derive(Debug, Clone)]
struct LayerState {
    /// Of the last tokens what a convolution reads, `[window, channels]`.
    window: Vec<f32>,
    memory: Vec<f32>,
}

/// What one layer reads of the tokens after the state.
#[derive(Debug, Clone, Default)]
struct Inputs {
    /// `[tokens, channels]`
    channels: Vec<f32>,
    /// `[tokens, inputs]`
    memory: Vec<f32>,
}

/// The way of a pass through the tokens after the state.
#[derive(Debug, Clone, Default)]
struct Plan {
    /// The first token that is new.
    new: usize,
    /// So many of them change the state.
    settled: usize,
    /// The others, depth first.
    steps: Vec<Step>,
}

/// The state of a sequence, and the tokens after it.
#[derive(Debug, Clone)]
pub(super) struct Recurrent {
    form: StateForm,
    state: Arc<State>,
    /// Older ones, and that of the end of the last prompt.
    kept: Vec<Arc<State>>,
    prompt: Option<Arc<State>>,
    /// Of each token after the state the slot after its parent's.
    parents: Vec<usize>,
    inputs: Vec<Inputs>,
    plan: Plan,
    /// Whether a pass is under way, or was given up: then the state is of no use.
    in_pass: bool,
}

impl Recurrent {
    pub fn new(form: StateForm) -> Self {
        let layer = LayerState {
            window: vec![0.0; form.window * form.channels],
            memory: vec![0.0; form.memory],
        };
        let state = State { tokens: 0, layers: vec![layer; form.layers] };
        Self {
            form,
            state: Arc::new(state),
            kept: Vec::new(),
            prompt: None,
            parents: Vec::new(),
            inputs: vec![Inputs::default(); form.layers],
            plan: Plan::default(),
            in_pass: false,
        }
    }

    /// The most slots, up to `slots`, from which on tokens can be computed.
    pub fn restart(&self, slots: usize) -> usize {
        let after = slots.checked_sub(self.state.tokens);
        match after.is_some_and(|after| after <= self.parents.len()) && !self.in_pass {
            true => slots,
            false => self.before(slots).map_or(0, |state| state.tokens),
        }
    }

    /// The last older state that is not after so many tokens.
    fn before(&self, slots: usize) -> Option<&Arc<State>> {
        let known = self.kept.iter().chain(&self.prompt);
        known.filter(|state| state.tokens <= slots).max_by_key(|state| state.tokens)
    }

    /// Goes back to the last state before so many tokens.
    fn go_back(&mut self, slots: usize) {
        let empty = Self::new(self.form).state;
        self.state = self.before(slots).cloned().unwrap_or(empty);
        self.kept.retain(|state| state.tokens <= slots);
        self.prompt = self.prompt.take().filter(|state| state.tokens <= slots);
        self.forget_after(0);
        self.in_pass = false;
    }

    /// Keeps the first so many tokens after the state.
    fn forget_after(&mut self, tokens: usize) {
        self.parents.truncate(tokens);
        for inputs in &mut self.inputs {
            inputs.channels.truncate(tokens * self.form.channels);
            inputs.memory.truncate(tokens * self.form.inputs);
        }
    }

    /// Begins a pass over the tokens from slot `start` on, from which on nothing is known any more;
    /// of all tokens the first `settled` are decided.
    pub fn begin(&mut self, start: usize, masks: &[Mask], settled: usize) -> Result<()> {
        if self.restart(start) != start {
            return Err(Error::Shape {
                operation: "a recurrent layer's state",
                expected: format!("tokens from {} on", self.restart(start)),
                got: start.to_string(),
            });
        }
        if start < self.state.tokens || self.in_pass {
            self.go_back(start);
        }
        let (begin, new) = (self.state.tokens, start - self.state.tokens);
        self.forget_after(new);
        self.parents.extend(masks.iter().map(|mask| match &mask.path[..] {
            [] => mask.context - 1,
            [.., parent, _] => parent + 1,
            [_] => mask.context,
        }));
        let settled = settled.saturating_sub(begin).min(self.parents.len());
        let steps = walk(&self.parents, begin, settled, new);
        self.plan = Plan { new, settled, steps };
        self.in_pass = true;
        Ok(())
    }

    /// Takes what the convolution of a layer reads of the new tokens.
    pub fn take_channels(&mut self, layer: usize, rows: &[f32]) {
        self.inputs[layer].channels.extend_from_slice(rows);
    }

    /// Takes what changes the memory of a layer of the new tokens.
    pub fn take_inputs(&mut self, layer: usize, rows: &[f32]) {
        self.inputs[layer].memory.extend_from_slice(rows);
    }

    /// Of every new token what the convolution of a layer reads, itself last.
    pub fn windows(&self, layer: usize) -> impl Iterator<Item = Vec<&[f32]>> {
        let Self { form, state, inputs, .. } = self;
        let (width, begin) = (form.channels, state.tokens);
        let before = &state.layers[layer].window;
        (self.plan.new..self.parents.len()).map(move |token| {
            let mut window = Vec::with_capacity(form.window + 1);
            let (mut token, mut old) = (Some(token), form.window);
            for _ in 0..=form.window {
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

    /// What a layer's memory goes through.
    pub fn walk(&mut self, layer: usize) -> Walk<'_> {
        let Plan { new, settled, ref steps } = self.plan;
        let memory = match settled {
            0 => Memory::Fixed(&self.state.layers[layer].memory),
            _ => Memory::Moving(&mut Arc::make_mut(&mut self.state).layers[layer].memory),
        };
        Walk { memory, rows: &self.inputs[layer].memory, settled, steps, new }
    }

    /// Ends a pass that all layers went through: the state is now that after the decided tokens.
    pub fn end(&mut self, is_prompt: bool) {
        self.in_pass = false;
        let (settled, form) = (self.plan.settled, self.form);
        if settled > 0 {
            let state = Arc::make_mut(&mut self.state);
            state.tokens += settled;
            for (layer, inputs) in state.layers.iter_mut().zip(&mut self.inputs) {
                let decided = settled * form.channels;
                layer.window.extend_from_slice(&inputs.channels[..decided]);
                let rest = layer.window.len() - form.window * form.channels;
                layer.window.drain(..rest);
                inputs.channels.drain(..decided);
                inputs.memory.drain(..settled * form.inputs);
            }
            self.parents.drain(..settled);
            self.plan = Plan::default();
        }
        let last = self.kept.last().map_or(0, |state| state.tokens);
        if self.state.tokens >= last + form.spacing {
            self.kept.push(Arc::clone(&self.state));
        } else if is_prompt {
            self.prompt = Some(Arc::clone(&self.state));
        }
    }

    /// Moves the inputs of `slots` to the slots from `start` on, one after the other.
    pub fn keep(&mut self, start: usize, slots: &[usize]) {
        let begin = self.state.tokens;
        let Some(first) = start.checked_sub(begin) else { return };
        for (to, &from) in (first..).zip(slots) {
            let from = from - begin;
            self.parents[to] = begin + to;
            for inputs in &mut self.inputs {
                for (rows, width) in [
                    (&mut inputs.channels, self.form.channels),
                    (&mut inputs.memory, self.form.inputs),
                ] {
                    rows.copy_within(from * width..(from + 1) * width, to * width);
                }
            }
        }
        self.forget_after(first + slots.len());
    }

    /// That of the first so many tokens.
    pub fn share(&self, slots: usize) -> Self {
        let mut other = self.clone();
        match other.restart(slots) == slots && slots >= other.state.tokens {
            true => other.forget_after(slots - other.state.tokens),
            false => other.go_back(slots),
        }
        other
    }

    /// Forgets the tokens after the first so many, as far as they are not part of the state.
    pub fn shorten(&mut self, slots: usize) {
        if let Some(after) = slots.checked_sub(self.state.tokens) {
            self.forget_after(after);
        }
    }

    /// Bytes that it takes, what it shares with others included.
    pub fn bytes(&self) -> usize {
        let form = self.form;
        let state = form.layers * (form.window * form.channels + form.memory);
        let states = 1 + self.kept.len() + usize::from(self.prompt.is_some());
        let tokens = form.layers * (form.channels + form.inputs) * self.parents.len();
        (states * state + tokens) * size_of::<f32>()
    }
}

/// The tokens from `settled` on that are new or before new ones, depth first; `parents` are slots,
/// of which `begin` is the first token's own.
fn walk(parents: &[usize], begin: usize, settled: usize, new: usize) -> Vec<Step> {
    let parent = |token: usize| parents[token].checked_sub(begin + settled + 1);
    let mut is_needed = vec![false; parents.len()];
    for token in new.max(settled)..parents.len() {
        let mut next = Some(token);
        while let Some(token) = next.filter(|token| !is_needed[*token]) {
            is_needed[token] = true;
            next = parent(token).map(|above| above + settled);
        }
    }
    let mut children = vec![Vec::new(); parents.len() + 1];
    for token in (settled..parents.len()).rev().filter(|token| is_needed[*token]) {
        children[parent(token).map_or(0, |above| above + settled + 1)].push(token);
    }
    let below = |children: &mut Vec<usize>, depth| {
        let rows = std::mem::take(children).into_iter();
        rows.map(|row| Step { row, depth }).collect::<Vec<_>>()
    };
    let (mut steps, mut open) = (Vec::new(), below(&mut children[0], 0));
    while let Some(step) = open.pop() {
        steps.push(step);
        open.append(&mut below(&mut children[step.row + 1], step.depth + 1));
    }
    steps
}
