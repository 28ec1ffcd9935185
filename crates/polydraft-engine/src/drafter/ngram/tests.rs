//! Tests of drafts by n-grams.

use super::*;
use crate::Vocabulary;

fn info() -> ModelInfo {
    ModelInfo {
        name: "t".to_owned(),
        vocabulary: Vocabulary::numbered(10),
        context: 100,
        hidden: None,
        accepts_empty_context: true,
        max_sequences: 1,
    }
}

fn drafter(settings: &Settings) -> Box<dyn Drafter> {
    settings.build(&info()).unwrap()
}

fn next(drafter: &mut dyn Drafter, sequence: Sequence, sampling: &Sampling) -> Distribution {
    drafter.score(&[(sequence, &DraftTree::new())]).unwrap();
    drafter.distribution(sequence, 0, sampling, None).unwrap()
}

#[test]
fn repeated_lines_become_likelier_each_time() {
    let mut drafter = drafter(&Settings::default());
    let sequence = drafter.open().unwrap();
    let even = next(drafter.as_mut(), sequence, &Sampling::default());
    assert!((even.probability(3) - 0.1).abs() < 1e-12);
    let line = [1, 2, 3, 4, 5, 6];
    let mut last = 0.0;
    for round in 0..4 {
        drafter.extend(sequence, &line).unwrap();
        drafter.extend(sequence, &[1, 2, 3]).unwrap();
        let probs = next(drafter.as_mut(), sequence, &Sampling::default());
        assert!((probs.to_vec().iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert!(probs.probability(4) > last - 1e-6, "{round}: {} {last}", probs.probability(4));
        assert_eq!(probs.probability(9), 0.0);
        last = probs.probability(4);
        drafter.extend(sequence, &[4, 5, 6]).unwrap();
    }
    assert!(last > 0.9, "{last}");
    let cold =
        next(drafter.as_mut(), sequence, &Sampling { temperature: 0.0, ..Sampling::default() });
    assert_eq!((cold.support_size(), cold.probability(1)), (1, 1.0));
}

/// Token 1 was followed by 2 half of the time: the confidence is one half, although 2 is
/// drafted more often.
#[test]
fn confidence_matches_past_accuracy() {
    let mut drafter = drafter(&Settings { order: 2, ..Settings::default() });
    let sequence = drafter.open().unwrap();
    let mut other = 0;
    for round in 0..300_u32 {
        // A different token precedes 1 each time, so that longer contexts predict nothing.
        other = (other + 3) % 5;
        let next = if round % 2 == 0 { 2 } else { 3 + round % 7 };
        drafter.extend(sequence, &[5 + other, 1, next]).unwrap();
    }
    drafter.extend(sequence, &[4, 1]).unwrap();
    for (temperature, max_probability) in [(1.0, 0.95), (0.0, 1.0)] {
        let probs =
            next(drafter.as_mut(), sequence, &Sampling { temperature, ..Sampling::default() });
        assert!(
            probs.argmax() == 2
                && probs.probability(2) > 0.7
                && probs.probability(2) <= max_probability,
            "{probs:?}"
        );
        assert!(
            (probs.confidence() - 0.5).abs() < 0.12,
            "at {temperature}: {}",
            probs.confidence()
        );
    }
}

#[test]
fn each_node_drafts_from_its_own_context() {
    let mut drafter = drafter(&Settings { order: 2, ..Settings::default() });
    let sequence = drafter.open().unwrap();
    drafter.extend(sequence, &[7, 1, 8, 7, 2, 9, 7]).unwrap();
    let mut tree = DraftTree::new();
    let (one, two) = (tree.add(0, 1), tree.add(0, 2));
    drafter.score(&[(sequence, &tree)]).unwrap();
    let probs = |node| drafter.distribution(sequence, node, &Sampling::default(), None).unwrap();
    assert_eq!((probs(one).argmax(), probs(two).argmax()), (8, 9));
    drafter.commit(sequence, &tree, &[two]).unwrap();
    assert_eq!(drafter.len(sequence), 8);
    assert_eq!(next(drafter.as_mut(), sequence, &Sampling::default()).argmax(), 9);
}

/// The result is the same as if the removed tokens had never been added.
#[test]
fn truncated_tokens_do_not_affect_drafts() {
    let mut drafter = drafter(&Settings::default());
    let (cut, full) = (drafter.open().unwrap(), drafter.open().unwrap());
    drafter.extend(cut, &[7, 1, 8, 7, 1, 9, 7, 1]).unwrap();
    next(drafter.as_mut(), cut, &Sampling::default());
    for (length, tokens) in [(5, &[2, 7][..]), (9, &[])] {
        drafter.truncate(cut, length);
        drafter.extend(cut, tokens).unwrap();
    }
    drafter.extend(full, &[7, 1, 8, 7, 1, 2, 7]).unwrap();
    assert_eq!(drafter.len(cut), 7);
    let distributions =
        [cut, full].map(|sequence| next(drafter.as_mut(), sequence, &Sampling::default()).to_vec());
    assert_eq!(distributions[0], distributions[1]);
}

#[test]
fn drafts_from_a_corpus() {
    let corpus = Settings { corpus: vec![3, 1, 4, 1, 5, 9, 2, 6], ..Settings::default() };
    let mut drafter = drafter(&corpus);
    let sequence = drafter.open().unwrap();
    drafter.extend(sequence, &[1, 5, 9]).unwrap();
    assert_eq!(next(drafter.as_mut(), sequence, &Sampling::default()).argmax(), 2);
}

#[test]
fn rejects_tokens_outside_the_vocabulary() {
    let mut drafter = drafter(&Settings::default());
    let sequence = drafter.open().unwrap();
    assert!(drafter.extend(sequence, &[10]).is_err());
    let corpus = Settings { corpus: vec![3, 10], ..Settings::default() };
    assert!(corpus.build(&info()).is_err());
}

#[test]
fn rejects_order_out_of_range() {
    for order in [0, 17] {
        assert!(Settings { order, ..Settings::default() }.build(&info()).is_err());
    }
}

/// The sequence's own n-grams are merged with those of the table.
#[test]
fn table_drafts_until_the_sequence_repeats_itself() {
    let mut learner = NgramLearner::new(&Vocabulary::numbered(10));
    (0..20).for_each(|_| learner.learn(&[1], &[(2, 0.9), (3, 0.1)]));
    let shared = Some(SharedNgrams::Table(Arc::new(learner.table())));
    let mut drafter = drafter(&Settings { shared, ..Settings::default() });
    let sequence = drafter.open().unwrap();
    drafter.extend(sequence, &[7, 8, 1]).unwrap();
    let probs = next(drafter.as_mut(), sequence, &Sampling::default());
    assert!(probs.argmax() == 2 && probs.probability(2) > 0.8, "{probs:?}");
    // The sequence has not repeated itself: its own prediction gets half of the weight.
    assert!((0.6..0.9).contains(&probs.confidence()), "{}", probs.confidence());
    for _ in 0..4 {
        drafter.extend(sequence, &[5, 7, 8, 1]).unwrap();
    }
    let probs = next(drafter.as_mut(), sequence, &Sampling::default());
    assert_eq!(probs.argmax(), 5, "{probs:?}");
    let sum: f64 = probs.to_vec().iter().sum();
    assert!((sum - 1.0).abs() < 1e-12 && probs.probability(2) > 0.0, "{probs:?}");
}
