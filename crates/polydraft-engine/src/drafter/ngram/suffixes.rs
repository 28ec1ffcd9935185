//! Longest matches: how much of a text's end occurred in it before, whatever its length.
//!
//! Problem: a copy of a long passage is recognised by the length of what already agrees, and so is
//! how far it will go on; contexts of bounded length cannot tell a copy from a common phrase.
//! Source: suffix automata (Blumer et al. 1985), the smallest automata that read exactly the
//! substrings of a text.
//! Method: a state stands for all substrings that end at the same places; its transitions are the
//! tokens that followed there. The state of the longest suffix that occurred before is the link of
//! the last state. A [`Match`] is a state and the length of its substring, and moves on by a token
//! in the same way, over text that is not part of the automaton.
//! Complexity: a token is added in amortized constant time, but for the search among the tokens
//! that followed a state; at most two states and three transitions a token.
//! Deviations: none.

use polydraft::Token;

/// Index of the state of the empty text.
const ROOT: u32 = 0;
/// Link of the root.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone)]
struct State {
    /// Length of the state's longest substring.
    length: u32,
    /// State of the longest suffix that also ends elsewhere.
    link: u32,
    /// Next states by token, ascending.
    next: Vec<(Token, u32)>,
}

impl State {
    fn after(&self, token: Token) -> Option<u32> {
        let index = self.next.binary_search_by_key(&token, |(known, _)| *known).ok()?;
        Some(self.next[index].1)
    }

    fn set(&mut self, token: Token, to: u32) {
        match self.next.binary_search_by_key(&token, |(known, _)| *known) {
            Ok(index) => self.next[index].1 = to,
            Err(index) => self.next.insert(index, (token, to)),
        }
    }
}

/// All substrings of a text that grows.
#[derive(Debug, Clone)]
pub struct Suffixes {
    states: Vec<State>,
    last: u32,
}

/// The longest end of a text that occurs in [`Suffixes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    state: u32,
    length: u32,
}

impl Default for Match {
    fn default() -> Self {
        Self { state: ROOT, length: 0 }
    }
}

impl Match {
    /// Returns the length in tokens.
    pub fn len(&self) -> usize {
        self.length as usize
    }
}

impl Default for Suffixes {
    fn default() -> Self {
        let root = State { length: 0, link: NONE, next: Vec::new() };
        Self { states: vec![root], last: ROOT }
    }
}

impl Suffixes {
    /// Adds a token to the end of the text.
    pub fn add(&mut self, token: Token) {
        let length = self.states[self.last as usize].length + 1;
        let new = self.push(State { length, link: ROOT, next: Vec::new() });
        let mut from = self.last;
        self.last = new;
        while from != NONE && self.states[from as usize].after(token).is_none() {
            self.states[from as usize].set(token, new);
            from = self.states[from as usize].link;
        }
        let Some(to) = self.states.get(from as usize).and_then(|state| state.after(token)) else {
            return;
        };
        let length = self.states[from as usize].length + 1;
        let link = if self.states[to as usize].length == length {
            to
        } else {
            // Its shorter substrings end at more places from now on.
            let State { link, ref next, .. } = self.states[to as usize];
            let shorter = State { length, link, next: next.clone() };
            let shorter = self.push(shorter);
            while from != NONE && self.states[from as usize].after(token) == Some(to) {
                self.states[from as usize].set(token, shorter);
                from = self.states[from as usize].link;
            }
            self.states[to as usize].link = shorter;
            shorter
        };
        self.states[new as usize].link = link;
    }

    fn push(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.states.len() as u32 - 1
    }

    /// Returns the longest end of the text that occurred in it before.
    pub fn repeated(&self) -> Match {
        match self.states[self.last as usize].link {
            NONE => Match::default(),
            state => Match { state, length: self.states[state as usize].length },
        }
    }

    /// Returns the longest match after a further token.
    pub fn after(&self, found: Match, token: Token) -> Match {
        let Match { mut state, mut length } = found;
        loop {
            if let Some(next) = self.states[state as usize].after(token) {
                return Match { state: next, length: length + 1 };
            }
            state = self.states[state as usize].link;
            if state == NONE {
                return Match::default();
            }
            length = self.states[state as usize].length;
        }
    }

    /// Returns the tokens that followed a match, ascending.
    pub fn followers(&self, found: Match) -> impl ExactSizeIterator<Item = Token> + '_ {
        self.states[found.state as usize].next.iter().map(|(token, _)| *token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest end of `text`, up to `all` tokens, that ends in `before` at another place, with the
    /// tokens after these places.
    fn searched(before: &[Token], text: &[Token], is_same: bool) -> (usize, Vec<Token>) {
        for length in (1..=text.len()).rev() {
            let end = &text[text.len() - length..];
            let places: Vec<usize> = (length..=before.len())
                .filter(|at| before[at - length..*at] == *end && !(is_same && *at == before.len()))
                .collect();
            if !places.is_empty() {
                let mut after: Vec<Token> =
                    places.iter().filter_map(|at| before.get(*at)).copied().collect();
                after.sort_unstable();
                after.dedup();
                return (length, after);
            }
        }
        let mut all = before.to_vec();
        all.sort_unstable();
        all.dedup();
        (0, all)
    }

    #[test]
    fn finds_what_a_search_finds() {
        // Texts with few tokens, and thus many repetitions.
        let mut random = 7_u32;
        for vocabulary in [1, 2, 3, 6] {
            let mut draw = || {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 16) % vocabulary
            };
            let text: Vec<Token> = (0..90).map(|_| draw()).collect();
            let (mut suffixes, mut text_so_far) = (Suffixes::default(), Vec::new());
            for &token in &text {
                suffixes.add(token);
                text_so_far.push(token);
                let found = suffixes.repeated();
                let followers: Vec<Token> = suffixes.followers(found).collect();
                let expected = searched(&text_so_far, &text_so_far, true);
                assert_eq!((found.len(), followers), expected, "{text_so_far:?}");
            }
            assert!(suffixes.states.len() <= 2 * text.len());
            // Text that is not part of it, from its end and from nothing.
            for from in [suffixes.repeated(), Match::default()] {
                let mut found = from;
                let mut read = text[text.len() - from.len()..].to_vec();
                for _ in 0..60 {
                    let token = draw() + u32::from(read.len() % 7 == 6);
                    read.push(token);
                    found = suffixes.after(found, token);
                    let expected = searched(&text, &read, false);
                    let followers: Vec<Token> = suffixes.followers(found).collect();
                    assert_eq!((found.len(), followers), expected, "{text:?} {read:?}");
                }
            }
        }
    }
}
