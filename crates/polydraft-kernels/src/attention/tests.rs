use half::f16;

use super::*;

const LAYOUT: PageLayout =
    PageLayout { layers: 1, heads: 2, head_size: 40, cache_type: CacheType::F32 };
const HEADS: usize = 6;
const WIDTH: usize = HEADS * LAYOUT.head_size;

/// Of a place of the text; one that a half holds too.
fn number(seed: usize, place: usize, i: usize) -> f32 {
    let number = ((seed + 31 * place + 7 * i) as f32 * 0.618).sin() * (1.0 + (place % 5) as f32);
    f16::from_f32(number).to_f32()
}

fn numbers(seed: usize, place: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| number(seed, place, i)).collect()
}

/// Pages in which slot s holds what belongs to place `places[s]`.
fn pages(places: &[usize], held: CacheType) -> Vec<Arc<Page>> {
    let page = |places: &[usize]| {
        let mut page = Page::new(PageLayout { cache_type: held, ..LAYOUT }).unwrap();
        for (slot, place) in places.iter().enumerate() {
            page.write(0, slot, &numbers(1, *place, 80), &numbers(2, *place, 80));
        }
        Arc::new(page)
    };
    places.chunks(PAGE_SLOTS).map(page).collect()
}

fn rules(window: Option<usize>) -> AttentionParams<'static> {
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

/// What tokens with these masks find; the query of each is that of its place.
fn found(pages: &[Arc<Page>], masks: &[Mask], window: Option<usize>) -> Vec<Vec<f32>> {
    let queries: Vec<f32> =
        masks.iter().flat_map(|mask| numbers(3, mask.position(), WIDTH)).collect();
    let part = SequenceInput { pages, masks, end: masks[0].context + masks.len() };
    let found = attend(&[part], &queries, rules(window));
    found.chunks(WIDTH).map(<[f32]>::to_vec).collect()
}

/// By the formula, in f64.
fn expected(position: usize, window: Option<usize>) -> Vec<f64> {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    let query = numbers(3, position, WIDTH);
    let mut out = Vec::new();
    for head in 0..HEADS {
        let shared = head / (HEADS / LAYOUT.heads) * LAYOUT.head_size;
        let score = |place: usize| {
            let key = numbers(1, place, 80);
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
            out.push(
                values.map(|(place, w)| w / sum * f64::from(number(2, place, shared + i))).sum(),
            );
        }
    }
    out
}

fn path(context: usize, path: &[usize]) -> Mask {
    Mask { context, path: path.to_vec() }
}

#[test]
fn segments_together_are_the_whole_text() {
    let text: Vec<usize> = (0..1300).collect();
    let [single, half] = [CacheType::F32, CacheType::F16].map(|held| pages(&text, held));
    for window in [None, Some(3), Some(700), Some(5000)] {
        for position in
            [0, 5, 63, 64, 127, 128, 200, 255, 256, 510, 511, 512, 513, 1023, 1024, 1299]
        {
            let own = found(&single, &[path(position, &[position])], window).remove(0);
            assert_eq!(own, found(&half, &[path(position, &[position])], window).remove(0));
            for (found, expected) in own.iter().zip(expected(position, window)) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 2e-4, "{position} {window:?}: {found}, {expected}");
            }
        }
    }
}

#[test]
fn a_row_depends_on_its_text_only() {
    for context in [60, 124, 1020] {
        rows_behind(context);
    }
}

/// Behind a context two branches, which both go on over the end of a segment, their slots among
/// each other.
fn rows_behind(context: usize) {
    let text: Vec<usize> = (0..context + 12).collect();
    let places: Vec<usize> = (0..context).chain((0..12).map(|i| context + i / 2)).collect();
    let branch = |own: usize, length: usize| {
        path(context, &(0..length).map(|i| context + 2 * i + own).collect::<Vec<_>>())
    };
    let [none, few, many] = [None, Some(4), Some(600)];
    for (held, window) in
        CacheType::ALL.into_iter().flat_map(|held| [none, few, many].map(|w| (held, w)))
    {
        let alone = |position: usize| {
            found(&pages(&text, held), &[path(position, &[position])], window).remove(0)
        };
        let tree: Vec<Mask> =
            (1..=6).flat_map(|length| [branch(0, length), branch(1, length)]).collect();
        let found = found(&pages(&places, held), &tree, window);
        for (i, row) in found.iter().enumerate() {
            assert_eq!(
                *row,
                alone(context + i / 2),
                "row {i} behind {context}, window {window:?}, {held}"
            );
        }
    }
}

/// A score of nothing takes its share of the weights: of one row and of several, of one segment and
/// of several.
#[test]
fn sinks_take_their_share() {
    let sinks = [0.5, -3.0, 4.0, 90.0, f32::NEG_INFINITY, 1.0];
    let text: Vec<usize> = (0..600).collect();
    let pages = pages(&text, CacheType::F32);
    for position in [0, 7, 63, 300, 599] {
        let query = numbers(3, position, WIDTH);
        let mut expected = expected(position, None);
        for (head, found) in expected.chunks_mut(LAYOUT.head_size).enumerate() {
            let shared = head / (HEADS / LAYOUT.heads) * LAYOUT.head_size;
            let score = |place: usize| {
                let key = numbers(1, place, 80);
                let own = &query[head * LAYOUT.head_size..][..LAYOUT.head_size];
                own.iter()
                    .zip(&key[shared..])
                    .map(|(q, k)| f64::from(*q) * f64::from(*k))
                    .sum::<f64>()
            };
            let sink = f64::from(sinks[head]);
            let sum: f64 = (0..=position).map(|place| (score(place) - sink).exp()).sum();
            let share = if sum.is_finite() { sum / (1.0 + sum) } else { 1.0 };
            found.iter_mut().for_each(|number| *number *= share);
        }
        let with = |masks: &[Mask]| {
            let queries: Vec<f32> =
                masks.iter().flat_map(|mask| numbers(3, mask.position(), WIDTH)).collect();
            let part = SequenceInput { pages: &pages, masks, end: masks[0].context + masks.len() };
            attend(&[part], &queries, AttentionParams { sinks: Some(&sinks), ..rules(None) })
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
