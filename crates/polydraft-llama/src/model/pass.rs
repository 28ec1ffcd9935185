//! Forward passes: collects the new tokens of sequences and trees in batches and computes them.

use polydraft::{DraftTree, NodeId};
use polydraft_engine::Sequence;

use super::LlamaModel;
use super::open_sequence::put;
use crate::native::{Id, MAX_LOGITS};
use crate::{Error, Result};

/// Tokens of a sequence and its tree that are to be computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'a> {
    pub sequence: Sequence,
    /// Number of the sequence's tokens that must be computed.
    pub end: usize,
    /// Tree whose new nodes must be computed; its root is the last of these tokens.
    pub tree: Option<&'a DraftTree>,
}

/// Role of a token in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    /// Token of a sequence.
    Token,
    /// Last token of a sequence, the root of its tree: its logits are wanted.
    Root,
    /// Node of the tree whose logits are wanted.
    Node(NodeId),
    /// Node of the tree whose logits are known.
    Known,
}

impl LlamaModel {
    /// Computes all `work` in as few passes as possible. After an error the sequences are reset, as
    /// if nothing had been computed for them.
    pub(super) fn compute(&mut self, mut work: Vec<Work>) -> Result<()> {
        work.sort_unstable_by_key(|work| work.sequence);
        work.dedup_by_key(|work| work.sequence);
        let done = self.try_compute(&work);
        if done.is_err() {
            self.batch.clear();
            self.rows.clear();
            work.iter().for_each(|work| self.clear_cached(work.sequence));
        }
        done
    }

    fn try_compute(&mut self, work: &[Work]) -> Result<()> {
        let mut path_by_path = Vec::new();
        for work in work {
            if let Some(first) = self.add(work)? {
                path_by_path.push((work, first));
            }
        }
        self.flush()?;
        for work in work {
            let width = self.info.vocabulary.size();
            let open = self.open_sequence_mut(work.sequence);
            open.computed = open.computed.max(work.end);
            if let Some(tree) = work.tree {
                open.logits.resize(tree.len() * width, 0.0);
                open.scored = tree.len();
            }
        }
        self.score_paths(&path_by_path)
    }

    /// Adds the tokens of a sequence to the batch. Returns the first new node of its tree if the
    /// tree must be scored path by path.
    fn add(&mut self, work: &Work) -> Result<Option<NodeId>> {
        let &Work { sequence, end, tree } = work;
        let scored = self.open_sequence(sequence).scored;
        let next = self.first_to_compute(sequence, end, scored);
        let Some(tree) = tree else {
            self.add_tokens(sequence, next..end, Row::Token)?;
            return Ok(None);
        };
        let first = scored.max(1);
        let is_shared = self.assign_ids(sequence, tree, next);
        let own = self.open_sequence(sequence).id;
        if scored == 0 {
            self.add_tokens(sequence, next..end, Row::Root)?;
        }
        if !is_shared {
            return Ok((tree.len() > first).then_some(first));
        }
        let ids = self.open_sequence(sequence).branches.ids_from(first, tree);
        for (node, ids) in (first..tree.len()).zip(ids) {
            debug_assert!(!ids.is_empty(), "node {node} of {own}");
            self.add_row(
                sequence,
                tree.token(node),
                end - 1 + tree.depth(node),
                &ids,
                Row::Node(node),
            )?;
        }
        Ok(None)
    }

    /// First token of a sequence that has to be computed, after removing from the cache everything
    /// from this token on.
    fn first_to_compute(&mut self, sequence: Sequence, end: usize, scored: usize) -> usize {
        if scored > 0 {
            return end;
        }
        let open = self.open_sequence(sequence);
        // The root is recomputed if its logits are not known.
        let (id, next, cached) = (open.id, open.computed.min(end - 1), open.cached.len());
        if cached > next {
            if !self.context.remove(id, next) {
                self.clear_cached(sequence);
                return 0;
            }
            let open = self.open_sequence_mut(sequence);
            open.cached.truncate(next);
            open.computed = next;
        }
        // Tokens that a window still needs may have been evicted.
        if self.has_lost_window(id, next) {
            self.clear_cached(sequence);
            return 0;
        }
        next
    }

    /// Whether the cache has lost tokens that a token at position `next` of this id would attend
    /// to.
    fn has_lost_window(&self, id: Id, next: usize) -> bool {
        let Some(window) = self.window.filter(|_| next > 0) else { return false };
        self.context.first(id).is_none_or(|first| first > (next + 1).saturating_sub(window))
    }

    /// Assigns ids to the leaves of a tree. Returns `false` if the tree must be scored path by
    /// path.
    fn assign_ids(&mut self, sequence: Sequence, tree: &DraftTree, next: usize) -> bool {
        let open = self.open_sequence(sequence);
        let (own, scored, length) = (open.id, open.scored, open.tokens.len());
        let grows = scored == 0 || open.branches.contains(DraftTree::ROOT);
        let forks = open.branches.forks(tree);
        let cached_length =
            |node: NodeId| if scored == 0 { next } else { length + tree.depth(node) };
        let has_window = |&(_, above): &(NodeId, NodeId)| {
            scored == 0
                || !self.has_lost_window(
                    self.open_sequence(sequence).branches.through(above),
                    cached_length(above),
                )
        };
        let possible = grows
            && !(self.has_state && tree.len() > 1)
            && forks.len() <= self.ids.left() + self.closed.len()
            && forks.iter().all(has_window);
        if !possible {
            self.drop_branches(sequence);
            return false;
        }
        let ids: Vec<Id> = forks.iter().filter_map(|_| self.take_id()).collect();
        let copies = self.open_sequence_mut(sequence).branches.grow(own, tree, ids);
        for copy in copies {
            self.context.copy(
                copy.from,
                copy.to,
                Some(cached_length(copy.node)).filter(|length| *length > 0),
            );
        }
        true
    }

    /// Removes a tree's scored nodes from the cache, but keeps their logits.
    fn drop_branches(&mut self, sequence: Sequence) {
        let scored = self.open_sequence(sequence).scored;
        self.drop_tree(sequence);
        self.open_sequence_mut(sequence).scored = scored;
    }

    /// Adds tokens of a sequence to the batch, under the ids of all its branches.
    fn add_tokens(
        &mut self,
        sequence: Sequence,
        tokens: std::ops::Range<usize>,
        last: Row,
    ) -> Result<()> {
        let open = self.open_sequence(sequence);
        let mut ids = open.branches.ids();
        if ids.is_empty() {
            ids.push(open.id);
        }
        for position in tokens.clone() {
            let token = self.open_sequence(sequence).tokens[position];
            let row = if position + 1 == tokens.end { last } else { Row::Token };
            self.add_row(sequence, token, position, &ids, row)?;
            self.open_sequence_mut(sequence).cached.push(token);
        }
        Ok(())
    }

    /// Adds one token to the batch, computing the batch first if it is full.
    fn add_row(
        &mut self,
        sequence: Sequence,
        token: u32,
        position: usize,
        ids: &[Id],
        row: Row,
    ) -> Result<()> {
        if self.batch.len() == self.context.rows() || self.batch.wanted() == MAX_LOGITS {
            self.flush()?;
        }
        self.batch.add(token, position, ids, matches!(row, Row::Root | Row::Node(_)));
        self.rows.push((sequence, position, row));
        Ok(())
    }

    /// Computes the batch and stores the logits that are wanted.
    fn flush(&mut self) -> Result<()> {
        if self.batch.len() == 0 {
            return Ok(());
        }
        loop {
            match self.context.decode(&mut self.batch) {
                // Closed sequences are evicted in favour of open ones.
                Err(Error::Full { .. }) if self.evict() => {}
                result => break result?,
            }
        }
        let width = self.info.vocabulary.size();
        let mut hidden_states = vec![0.0; self.hidden_state_width()];
        for (index, (sequence, position, row)) in self.rows.drain(..).enumerate() {
            let open = &mut self.sequences[sequence];
            let node = match row {
                Row::Root => Some(DraftTree::ROOT),
                Row::Node(node) => Some(node),
                Row::Token | Row::Known => None,
            };
            if let Some(node) = node {
                put(&mut open.logits, node, &self.context.logits(index)[..width]);
            }
            if !hidden_states.is_empty() && row != Row::Known {
                self.context.hidden_states(index, &mut hidden_states);
                match row {
                    Row::Node(node) => put(&mut open.node_hidden_states, node, &hidden_states),
                    _ => open.set_hidden_states(position, &hidden_states),
                }
            }
        }
        self.batch.clear();
        Ok(())
    }

    /// Scores the nodes of trees from a first one on, after their sequences are computed: each path
    /// under an id of its own, with a copy of the state, as many paths per pass as there are ids.
    /// Nothing stays in the cache.
    fn score_paths(&mut self, path_by_path: &[(&Work, NodeId)]) -> Result<()> {
        let mut paths = Vec::new();
        for &(&Work { sequence, tree, .. }, first) in path_by_path {
            let Some(tree) = tree else { continue };
            let mut is_scored = vec![false; tree.len()];
            is_scored[..first].fill(true);
            for leaf in (first..tree.len()).filter(|node| tree.children(*node).next().is_none()) {
                let mark_scored = |node| std::mem::replace(&mut is_scored[node], true);
                let rows = tree.path(leaf).into_iter().map(mark_scored);
                paths.push((sequence, tree, leaf, rows.collect::<Vec<bool>>()));
            }
        }
        let mut ids = vec![self.spare];
        while ids.len() < paths.len()
            && let Some(id) = self.take_id()
        {
            ids.push(id);
        }
        let mut done = Ok(());
        for batch in paths.chunks(ids.len()) {
            for (&id, (sequence, tree, leaf, known)) in ids.iter().zip(batch) {
                self.context.copy(self.open_sequence(*sequence).id, id, None);
                let length = self.open_sequence(*sequence).tokens.len();
                for (node, &is_known) in tree.path(*leaf).into_iter().zip(known) {
                    let row = if is_known { Row::Known } else { Row::Node(node) };
                    let position = length - 1 + tree.depth(node);
                    done = done.and_then(|()| {
                        self.add_row(*sequence, tree.token(node), position, &[id], row)
                    });
                }
            }
            done = done.and_then(|()| self.flush());
            for &id in &ids[..batch.len()] {
                self.context.remove(id, 0);
            }
        }
        ids[1..].iter().for_each(|id| self.ids.release(*id));
        done
    }
}
