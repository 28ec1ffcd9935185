//! Possible orders of the draws at a node.
//!
//! Problem: a tree stores the order in which distinct tokens were first drawn, and the number of
//! draws of each. A rule needs all draws in order.
//! Source: ours. All orders that fit are equally likely: all are listed if they are few, else
//! random ones are drawn.
//! Complexity: at most six orders.

use polydraft::{Draft, Drafting, NodeId, Token};
use rand::RngExt;
use rand_chacha::ChaCha12Rng;

/// Maximum number of orders that are enumerated, and number of random ones if there are more.
const ORDERS: usize = 6;
pub const RANDOM_ORDERS: usize = 6;

/// Returns equally likely orders of the draws below a node.
pub fn orders(draft: &Draft, node: NodeId, random: &mut ChaCha12Rng) -> Vec<Vec<Token>> {
    let tree = draft.tree();
    if let Some(tokens) = draft.distinct_tokens(node) {
        return vec![tokens.to_vec()];
    }
    let children: Vec<(Token, usize)> =
        tree.children(node).map(|child| (tree.token(child), tree.draws(child))).collect();
    let drawn: usize = children.iter().map(|(_, draws)| draws).sum();
    let ordered = draft.draws(node).is_none_or(|draws| draws.scheme != Drafting::Iid);
    if ordered || children.len() == 1 {
        let draws = |&(token, draws)| std::iter::repeat_n(token, draws);
        return vec![children.iter().flat_map(draws).collect()];
    }
    // If a child draws anew, its draws may depend on when its token was first drawn, so children
    // stay in that order. Continued paths do not depend on it, and more orders give a better mean.
    let anew = tree.children(node).any(|child| draft.has_fresh_draws(child));
    let known = if anew { 0 } else { children.len() };
    let mut begun = Begun { left: children, known, order: Vec::new() };
    // Usually there are at least as many orders as draws.
    let mut orders = Vec::new();
    if drawn <= ORDERS && begun.list(drawn, &mut orders) {
        return orders;
    }
    (0..RANDOM_ORDERS).map(|_| begun.clone().shuffled(drawn, random)).collect()
}

/// A partial order of draws.
#[derive(Clone)]
struct Begun {
    /// Tokens, with their numbers of remaining draws.
    left: Vec<(Token, usize)>,
    /// Number of tokens drawn so far; the next new token has this index.
    known: usize,
    order: Vec<Token>,
}

impl Begun {
    fn draw(&mut self, index: usize) {
        self.left[index].1 -= 1;
        self.known = self.known.max(index + 1);
        self.order.push(self.left[index].0);
    }

    /// Lists all distinct orders with `length` draws; returns false if there are too many.
    fn list(&mut self, length: usize, orders: &mut Vec<Vec<Token>>) -> bool {
        if self.order.len() == length {
            orders.push(self.order.clone());
            return orders.len() <= ORDERS;
        }
        let known = self.known;
        for index in 0..self.left.len().min(known + 1) {
            if self.left[index].1 == 0 {
                continue;
            }
            self.draw(index);
            let small = self.list(length, orders);
            self.order.pop();
            self.left[index].1 += 1;
            self.known = known;
            if !small {
                return false;
            }
        }
        true
    }

    /// Returns a random one of these orders.
    fn shuffled(mut self, length: usize, random: &mut ChaCha12Rng) -> Vec<Token> {
        while self.order.len() < length {
            let mut location = random.random_range(0..length - self.order.len());
            let mut index = 0;
            // Draws of tokens that were not drawn yet stand for the next new token.
            while index < self.known && location >= self.left[index].1 {
                location -= self.left[index].1;
                index += 1;
            }
            self.draw(index);
        }
        self.order
    }
}

#[cfg(test)]
mod tests {
    use polydraft::{Distribution, Draws, Growth};
    use rand::SeedableRng;

    use super::*;

    /// Random orders have the correct mean.
    #[test]
    fn orders_are_equally_likely() {
        let probs = Distribution::new(vec![0.25; 4]).expect("a distribution");
        let mut random = ChaCha12Rng::seed_from_u64(1);
        let mut draft = Draft::new();
        draft.draw(0, probs.clone(), Growth::Fresh(Draws::iid(4)), &mut random).expect("drawn");
        let all = orders(&draft, 0, &mut random);
        let tree = draft.tree();
        let factorial = |n: usize| (1..=n).product::<usize>();
        let repeats: usize = tree.children(0).map(|child| factorial(tree.draws(child))).product();
        assert_eq!(all.len(), if 24 / repeats > ORDERS { RANDOM_ORDERS } else { 24 / repeats });
        let mut draft = Draft::new();
        draft.draw(0, probs, Growth::Fresh(Draws::iid(12)), &mut random).expect("drawn");
        assert_eq!(orders(&draft, 0, &mut random).len(), RANDOM_ORDERS);
        // If the children draw anew, the first draw is known.
        let (known, growth) = ([2, 0, 2, 1], Growth::Fresh(Draws::iid(4)));
        for (anew, expected) in [(false, 12), (true, 3)] {
            let mut draft = Draft::new();
            let probs = Distribution::new(vec![0.25; 4]).expect("a distribution");
            draft.record(0, probs.clone(), growth, &known).expect("recorded");
            if anew {
                draft.record(1, probs, Growth::Fresh(Draws::iid(1)), &[0]).expect("recorded");
            }
            let all = orders(&draft, 0, &mut random);
            let begun = Begun { left: vec![(2, 2), (0, 1), (1, 1)], known: 0, order: Vec::new() };
            // 2201, 2021 and 2012; out of 12 in total, which is more than are listed.
            assert_eq!(all.len(), if anew { expected } else { RANDOM_ORDERS });
            for _ in 0..20 {
                let order = begun.clone().shuffled(4, &mut random);
                assert!(!anew || all.contains(&order), "{order:?}");
            }
        }
    }
}
