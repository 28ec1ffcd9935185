//! The product of a tile in scalar Rust: the kernel for CPUs without a vector kernel, and the
//! reference for tests of the others.

use crate::packed::block::{Block, COLUMNS};
use crate::packed::inputs::Input;
use crate::packed::tiles::TILE;

pub(super) fn tile<B: Block>(w: &[B], x: &[Input], y: &mut [[f32; TILE]]) {
    let rows = y.len();
    y.fill([0.0; TILE]);
    for (w, x) in w.iter().zip(x.chunks_exact(rows * B::SUB_BLOCKS)) {
        for (sub_block, x) in x.chunks_exact(rows).enumerate() {
            let numbers = w.numbers(sub_block);
            for lane in 0..TILE {
                let numbers: [i32; COLUMNS] = numbers.get(lane, B::OFFSET);
                for (span, numbers) in numbers.chunks_exact(COLUMNS / B::SPANS).enumerate() {
                    let scale = w.scales(sub_block, span).get(lane);
                    let minimum = w.minima(sub_block, span).map(|m| m.get(lane));
                    for (x, y) in x.iter().zip(&mut *y) {
                        let inputs = &x.numbers[span * numbers.len()..];
                        let products = numbers.iter().zip(inputs).map(|(w, x)| w * i32::from(*x));
                        let sum: i32 = products.sum();
                        y[lane] = (sum as f32).mul_add(scale * x.scale, y[lane]);
                        if let Some(minimum) = minimum {
                            y[lane] = minimum.mul_add(x.spans[span].sum, y[lane]);
                        }
                    }
                }
            }
        }
    }
}
