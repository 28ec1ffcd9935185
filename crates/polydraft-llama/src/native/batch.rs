//! Batch of tokens for a pass.

use std::ptr::null_mut;

use llama_cpp_sys_2 as sys;
use polydraft::Token;

use super::{Id, position};

/// Batch of tokens for a pass: the position of each in its sequence, and the ids of all branches
/// that contain it.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    /// Ids of all tokens, concatenated.
    ids: Vec<Id>,
    /// Number of ids of each token.
    counts: Vec<i32>,
    /// Whether the logits of each token are wanted.
    wants: Vec<i8>,
    /// Number of tokens whose logits are wanted.
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

    /// Adds a token and returns its row in the pass.
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

    /// Number of tokens whose logits are wanted.
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

    /// Calls `f` with the batch in llama.cpp's form; llama.cpp only reads it.
    pub(super) fn with<T>(&self, f: impl FnOnce(sys::llama_batch) -> T) -> T {
        let mut rest = &self.ids[..];
        let mut ids: Vec<*mut Id> = Vec::with_capacity(self.len() + 1);
        for &count in &self.counts {
            let token_ids;
            (token_ids, rest) = rest.split_at(count as usize);
            ids.push(token_ids.as_ptr().cast_mut());
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
