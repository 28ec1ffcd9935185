use half::f16;

use super::*;

const LAYOUT: PageLayout =
    PageLayout { layers: 1, heads: 2, head_size: 40, cache_type: CacheType::F32 };
const HEADS: usize = 6;
const WIDTH: usize = HEADS * LAYOUT.head_size;

/// Returns a number of a position's vector, exactly representable in f16.
fn number(seed: usize, position: usize, i: usize) -> f32 {
    let number =
        ((seed + 31 * position + 7 * i) as f32 * 0.618).sin() * (1.0 + (position % 5) as f32);
    f16::from_f32(number).to_f32()
}

fn numbers(seed: usize, position: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| number(seed, position, i)).collect()
}

/// Returns pages in which slot s holds the key and value of position `positions[s]`.
fn pages(positions: &[usize], cache_type: CacheType) -> Vec<Arc<Page>> {
    let page = |positions: &[usize]| {
        let mut page = Page::new(PageLayout { cache_type, ..LAYOUT }).unwrap();
        for (slot, position) in positions.iter().enumerate() {
            page.write(0, slot, &numbers(1, *position, 80), &numbers(2, *position, 80));
        }
        Arc::new(page)
    };
    positions.chunks(PAGE_SLOTS).map(page).collect()
}

fn params(window: Option<usize>) -> AttentionParams<'static> {
    let softcap = None;
    AttentionParams {
        layer: 0,
        layout: LAYOUT,
        heads: HEADS,
        stride: WIDTH,
        window,
        softcap,
        sinks: None,
    }
}

/// Returns the output of a token per mask, with the query of its position.
fn outputs(pages: &[Arc<Page>], masks: &[Mask], window: Option<usize>) -> Vec<Vec<f32>> {
    let queries: Vec<f32> =
        masks.iter().flat_map(|mask| numbers(3, mask.position(), WIDTH)).collect();
    let sequence = SequenceInput { pages, masks, end: masks[0].context + masks.len() };
    let outputs = attend(&[sequence], &queries, params(window));
    outputs.chunks(WIDTH).map(<[f32]>::to_vec).collect()
}

/// Returns the output of a token by the formula, in double precision.
fn expected(position: usize, window: Option<usize>) -> Vec<f64> {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    let query = numbers(3, position, WIDTH);
    let mut out = Vec::new();
    for head in 0..HEADS {
        let shared = head / (HEADS / LAYOUT.heads) * LAYOUT.head_size;
        let score = |position: usize| {
            let key = numbers(1, position, 80);
            (0..LAYOUT.head_size)
                .map(|i| f64::from(query[head * LAYOUT.head_size + i]) * f64::from(key[shared + i]))
                .sum::<f64>()
        };
        let scores: Vec<f64> = (first..=position).map(score).collect();
        let top = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
        let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for i in 0..LAYOUT.head_size {
            let values = (first..=position).zip(&weights);
            out.push(values.map(|(at, w)| w / sum * f64::from(number(2, at, shared + i))).sum());
        }
    }
    out
}

fn path(context: usize, path: &[usize]) -> Mask {
    Mask { context, path: path.to_vec() }
}

#[test]
fn output_matches_formula_across_segments_and_cache_types() {
    let positions: Vec<usize> = (0..1300).collect();
    let [single, half] =
        [CacheType::F32, CacheType::F16].map(|cache_type| pages(&positions, cache_type));
    for window in [None, Some(3), Some(700), Some(5000)] {
        for position in
            [0, 5, 63, 64, 127, 128, 200, 255, 256, 510, 511, 512, 513, 1023, 1024, 1299]
        {
            let output = outputs(&single, &[path(position, &[position])], window).remove(0);
            assert_eq!(output, outputs(&half, &[path(position, &[position])], window).remove(0));
            for (found, expected) in output.iter().zip(expected(position, window)) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 2e-4, "{position} {window:?}: {found}, {expected}");
            }
        }
    }
}

#[test]
fn output_does_not_depend_on_other_branches_or_slots() {
    for context in [60, 124, 1020] {
        check_branches_after(context);
    }
}

/// Compares each token of two branches with the same token in a sequence of its own. Both branches
/// cross the end of a segment, and their slots alternate.
fn check_branches_after(context: usize) {
    let positions: Vec<usize> = (0..context + 12).collect();
    let branched: Vec<usize> = (0..context).chain((0..12).map(|i| context + i / 2)).collect();
    let branch = |branch: usize, length: usize| {
        path(context, &(0..length).map(|i| context + 2 * i + branch).collect::<Vec<_>>())
    };
    let windows = [None, Some(4), Some(600)];
    for (cache_type, window) in
        CacheType::ALL.into_iter().flat_map(|cache_type| windows.map(|window| (cache_type, window)))
    {
        let alone = |position: usize| {
            let pages = pages(&positions, cache_type);
            outputs(&pages, &[path(position, &[position])], window).remove(0)
        };
        let tree: Vec<Mask> =
            (1..=6).flat_map(|length| [branch(0, length), branch(1, length)]).collect();
        let outputs = outputs(&pages(&branched, cache_type), &tree, window);
        for (i, row) in outputs.iter().enumerate() {
            assert_eq!(
                *row,
                alone(context + i / 2),
                "row {i} after {context}, window {window:?}, {cache_type}"
            );
        }
    }
}

/// Compares outputs with sinks to the formula, for one and several rows and segments.
#[test]
fn sinks_match_formula() {
    let sinks = [0.5, -3.0, 4.0, 90.0, f32::NEG_INFINITY, 1.0];
    let positions: Vec<usize> = (0..600).collect();
    let pages = pages(&positions, CacheType::F32);
    for position in [0, 7, 63, 300, 599] {
        let query = numbers(3, position, WIDTH);
        let mut expected = expected(position, None);
        for (head, found) in expected.chunks_mut(LAYOUT.head_size).enumerate() {
            let shared = head / (HEADS / LAYOUT.heads) * LAYOUT.head_size;
            let score = |position: usize| {
                let key = numbers(1, position, 80);
                let query = &query[head * LAYOUT.head_size..][..LAYOUT.head_size];
                query
                    .iter()
                    .zip(&key[shared..])
                    .map(|(q, k)| f64::from(*q) * f64::from(*k))
                    .sum::<f64>()
            };
            let sink = f64::from(sinks[head]);
            let sum: f64 = (0..=position).map(|position| (score(position) - sink).exp()).sum();
            let share = if sum.is_finite() { sum / (1.0 + sum) } else { 1.0 };
            found.iter_mut().for_each(|number| *number *= share);
        }
        let with = |masks: &[Mask]| {
            let queries: Vec<f32> =
                masks.iter().flat_map(|mask| numbers(3, mask.position(), WIDTH)).collect();
            let sequence =
                SequenceInput { pages: &pages, masks, end: masks[0].context + masks.len() };
            let params = AttentionParams { sinks: Some(&sinks), ..params(None) };
            attend(&[sequence], &queries, params)
        };
        let alone = with(&[path(position, &[position])]);
        for (found, expected) in alone.iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() < 2e-4, "{position}: {found}, {expected}");
        }
        if position > 0 {
            let masks = [path(position - 1, &[position - 1]), path(position, &[position])];
            assert_eq!(with(&masks)[WIDTH..], alone);
        }
    }
}
