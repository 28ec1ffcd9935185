//! The tokens of a pass.

use std::ptr::null_mut;

use llama_cpp_sys_2 as sys;
use polydraft::Token;

use super::{Id, position};

/// The tokens of a pass: the position of each in its sequence, and the ids of all branches that go
/// through it.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    /// Of all tokens, one after another.
    ids: Vec<Id>,
    /// How many of those each token has.
    counts: Vec<i32>,
    wants: Vec<i8>,
    wanted: usize,
}

impl Batch {
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.ids.clear();
        self.counts.clear();
        self.wants.clear();
        self.wanted = 0;
    }

    /// Adds a token and returns its number in the pass.
    pub fn add(&mut self, token: Token, at: usize, ids: &[Id], wanted: bool) -> usize {
        assert!(!ids.is_empty(), "a token of no sequence");
        self.tokens.push(i32::try_from(token).expect("a token of the vocabulary"));
        self.positions.push(position(at));
        self.ids.extend_from_slice(ids);
        self.counts.push(ids.len() as i32);
        self.wants.push(wanted.into());
        self.wanted += usize::from(wanted);
        self.len() - 1
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens whose logits are asked for.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    pub(super) fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    pub(super) fn ids(&self) -> &[Id] {
        &self.ids
    }

    pub(super) fn wants(&self) -> &[i8] {
        &self.wants
    }

    /// Lends it as llama.cpp has it, which reads it and no more.
    pub(super) fn with<T>(&self, f: impl FnOnce(sys::llama_batch) -> T) -> T {
        let mut rest = &self.ids[..];
        let mut ids: Vec<*mut Id> = Vec::with_capacity(self.len() + 1);
        for &count in &self.counts {
            let own;
            (own, rest) = rest.split_at(count as usize);
            ids.push(own.as_ptr().cast_mut());
        }
        ids.push(null_mut());
        f(sys::llama_batch {
            n_tokens: self.len() as i32,
            token: self.tokens.as_ptr().cast_mut(),
            embd: null_mut(),
            pos: self.positions.as_ptr().cast_mut(),
            n_seq_id: self.counts.as_ptr().cast_mut(),
            seq_id: ids.as_mut_ptr(),
            logits: self.wants.as_ptr().cast_mut(),
        })
    }
}
