//! Forward passes: the new tokens of sequences and trees, put into batches and computed.

use polydraft::{DraftTree, NodeId};
use polydraft_engine::Sequence;

use super::LlamaModel;
use super::text::put;
use crate::native::{Id, WANTED};
use crate::{Error, Result};

/// What is to be computed of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'a> {
    pub sequence: Sequence,
    /// So many of its tokens.
    pub end: usize,
    /// And what is new of this tree, whose root is the last of them.
    pub tree: Option<&'a DraftTree>,
}

/// What a token of a pass is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    /// A token of a sequence.
    Token,
    /// The last one, which a tree follows: its logits are wanted.
    Root,
    /// A node of the tree, with its logits.
    Node(NodeId),
    /// A node whose logits are known.
    Again,
}

impl LlamaModel {
    /// Computes all `work` in as few passes as it fits into. After an error the sequences are as if
    /// nothing had been computed for them.
    pub(super) fn compute(&mut self, mut work: Vec<Work>) -> Result<()> {
        work.sort_unstable_by_key(|work| work.sequence);
        work.dedup_by_key(|work| work.sequence);
        let done = self.try_compute(&work);
        if done.is_err() {
            self.batch.clear();
            self.rows.clear();
            work.iter().for_each(|work| self.forget(work.sequence));
        }
        done
    }

    fn try_compute(&mut self, work: &[Work]) -> Result<()> {
        let mut apart = Vec::new();
        for work in work {
            if let Some(first) = self.add(work)? {
                apart.push((work, first));
            }
        }
        self.flush()?;
        for work in work {
            let width = self.info.vocabulary.size();
            let text = self.text_mut(work.sequence);
            text.computed = text.computed.max(work.end);
            if let Some(tree) = work.tree {
                text.logits.resize(tree.len() * width, 0.0);
                text.scored = tree.len();
            }
        }
        self.score_paths(&apart)
    }

    /// Puts the tokens of a sequence into the batch. Returns the first new node of its tree if that
    /// is to be scored path by path.
    fn add(&mut self, work: &Work) -> Result<Option<NodeId>> {
        let &Work { sequence, end, tree } = work;
        let scored = self.text(sequence).scored;
        let next = self.begin(sequence, end, scored);
        let Some(tree) = tree else {
            self.add_tokens(sequence, next..end, Row::Token)?;
            return Ok(None);
        };
        let first = scored.max(1);
        let is_shared = self.branch(sequence, tree, next);
        let own = self.text(sequence).id;
        if scored == 0 {
            self.add_tokens(sequence, next..end, Row::Root)?;
        }
        if !is_shared {
            return Ok((tree.len() > first).then_some(first));
        }
        let ids = self.text(sequence).branches.ids_from(first, tree);
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

    /// The first token of a sequence that has to be computed, the cache holding what is before it
    /// and no more.
    fn begin(&mut self, sequence: Sequence, end: usize, scored: usize) -> usize {
        if scored > 0 {
            return end;
        }
        let text = self.text(sequence);
        // The root is computed again where its logits are not known.
        let (id, next, held) = (text.id, text.computed.min(end - 1), text.held.len());
        if held > next {
            if !self.context.remove(id, next) {
                self.forget(sequence);
                return 0;
            }
            let text = self.text_mut(sequence);
            text.held.truncate(next);
            text.computed = next;
        }
        // The tokens that a window still needs may have made room for others.
        if self.lacks(id, next) {
            self.forget(sequence);
            return 0;
        }
        next
    }

    /// Whether the cache has lost what a token at position `next` of an id's sequence would see.
    fn lacks(&self, id: Id, next: usize) -> bool {
        let Some(window) = self.window.filter(|_| next > 0) else { return false };
        self.context.first(id).is_none_or(|first| first > (next + 1).saturating_sub(window))
    }

    /// Gives the leaves of a tree their ids. False if it has to be scored path by path.
    fn branch(&mut self, sequence: Sequence, tree: &DraftTree, next: usize) -> bool {
        let text = self.text(sequence);
        let (own, scored, length) = (text.id, text.scored, text.tokens.len());
        let grows = scored == 0 || text.branches.holds(DraftTree::ROOT);
        let forks = text.branches.forks(tree);
        let place = |node: NodeId| if scored == 0 { next } else { length + tree.depth(node) };
        let whole = |&(_, above): &(NodeId, NodeId)| {
            scored == 0 || !self.lacks(self.text(sequence).branches.through(above), place(above))
        };
        let possible = grows
            && !(self.has_state && tree.len() > 1)
            && forks.len() <= self.ids.left() + self.kept.len()
            && forks.iter().all(whole);
        if !possible {
            self.drop_branches(sequence);
            return false;
        }
        let ids: Vec<Id> = forks.iter().filter_map(|_| self.take_id()).collect();
        let copies = self.text_mut(sequence).branches.grow(own, tree, ids);
        for copy in copies {
            self.context.copy(
                copy.from,
                copy.to,
                Some(place(copy.node)).filter(|length| *length > 0),
            );
        }
        true
    }

    /// Takes what is scored of a tree from the cache; its logits stay.
    fn drop_branches(&mut self, sequence: Sequence) {
        let scored = self.text(sequence).scored;
        self.drop_tree(sequence);
        self.text_mut(sequence).scored = scored;
    }

    /// Tokens of a sequence, under all ids of its branches.
    fn add_tokens(
        &mut self,
        sequence: Sequence,
        tokens: std::ops::Range<usize>,
        last: Row,
    ) -> Result<()> {
        let text = self.text(sequence);
        let mut ids = text.branches.ids();
        if ids.is_empty() {
            ids.push(text.id);
        }
        for place in tokens.clone() {
            let token = self.text(sequence).tokens[place];
            let row = if place + 1 == tokens.end { last } else { Row::Token };
            self.add_row(sequence, token, place, &ids, row)?;
            self.text_mut(sequence).held.push(token);
        }
        Ok(())
    }

    fn add_row(
        &mut self,
        sequence: Sequence,
        token: u32,
        place: usize,
        ids: &[Id],
        row: Row,
    ) -> Result<()> {
        if self.batch.len() == self.context.rows() || self.batch.wanted() == WANTED {
            self.flush()?;
        }
        self.batch.add(token, place, ids, matches!(row, Row::Root | Row::Node(_)));
        self.rows.push((sequence, place, row));
        Ok(())
    }

    /// Computes the tokens that were added, and takes the logits that are wanted.
    fn flush(&mut self) -> Result<()> {
        if self.batch.len() == 0 {
            return Ok(());
        }
        loop {
            match self.context.decode(&mut self.batch) {
                // The cache of closed sequences makes room for open ones.
                Err(Error::Full { .. }) if self.evict() => {}
                done => break done?,
            }
        }
        let width = self.info.vocabulary.size();
        let mut states = vec![0.0; self.states()];
        for (index, (sequence, place, row)) in self.rows.drain(..).enumerate() {
            let text = &mut self.texts[sequence];
            let node = match row {
                Row::Root => Some(DraftTree::ROOT),
                Row::Node(node) => Some(node),
                Row::Token | Row::Again => None,
            };
            if let Some(node) = node {
                put(&mut text.logits, node, &self.context.logits(index)[..width]);
            }
            if !states.is_empty() && row != Row::Again {
                self.context.states(index, &mut states);
                match row {
                    Row::Node(node) => put(&mut text.node_states, node, &states),
                    _ => text.state(place, &states),
                }
            }
        }
        self.batch.clear();
        Ok(())
    }

    /// Scores the nodes of trees from a first one on, after sequences that are computed: each path
    /// under an id of its own, with a copy of the state, as many in one pass as there are ids.
    /// None of it stays.
    fn score_paths(&mut self, apart: &[(&Work, NodeId)]) -> Result<()> {
        let mut paths = Vec::new();
        for &(&Work { sequence, tree, .. }, first) in apart {
            let Some(tree) = tree else { continue };
            let mut is_scored = vec![false; tree.len()];
            is_scored[..first].fill(true);
            for leaf in (first..tree.len()).filter(|node| tree.children(*node).next().is_none()) {
                let known = |node| std::mem::replace(&mut is_scored[node], true);
                let rows = tree.path(leaf).into_iter().map(known);
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
        for some in paths.chunks(ids.len()) {
            for (&id, (sequence, tree, leaf, known)) in ids.iter().zip(some) {
                self.context.copy(self.text(*sequence).id, id, None);
                let length = self.text(*sequence).tokens.len();
                for (node, &is_known) in tree.path(*leaf).into_iter().zip(known) {
                    let row = if is_known { Row::Again } else { Row::Node(node) };
                    let place = length - 1 + tree.depth(node);
                    done = done.and_then(|()| {
                        self.add_row(*sequence, tree.token(node), place, &[id], row)
                    });
                }
            }
            done = done.and_then(|()| self.flush());
            for &id in &ids[..some.len()] {
                self.context.remove(id, 0);
            }
        }
        ids[1..].iter().for_each(|id| self.ids.give(*id));
        done
    }
}
