//! Number types of stored weights.

use half::{bf16, f16};

/// A number type of stored weights.
pub(crate) trait Element: Copy + Default + Send + Sync {
    fn from_f32(bytes: [u8; 4]) -> Self;
    fn from_f16(bytes: [u8; 2]) -> Self;
    fn from_bf16(bytes: [u8; 2]) -> Self;
    fn is_finite(self) -> bool;
    fn widened(self) -> f32;
}

macro_rules! element {
    ($type:ty, $f32:expr, $f16:expr, $bf16:expr) => {
        impl Element for $type {
            #[inline(always)]
            fn from_f32(bytes: [u8; 4]) -> Self {
                $f32(f32::from_le_bytes(bytes))
            }
            #[inline(always)]
            fn from_f16(bytes: [u8; 2]) -> Self {
                $f16(f16::from_le_bytes(bytes))
            }
            #[inline(always)]
            fn from_bf16(bytes: [u8; 2]) -> Self {
                $bf16(bf16::from_le_bytes(bytes))
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                <$type>::is_finite(self)
            }
            #[inline(always)]
            fn widened(self) -> f32 {
                f32::from(self)
            }
        }
    };
}
element!(f32, |x: f32| x, f16::to_f32, bf16::to_f32);
element!(f16, f16::from_f32, |x: f16| x, |x: bf16| f16::from_f32(x.to_f32()));
element!(bf16, bf16::from_f32, |x: f16| bf16::from_f32(x.to_f32()), |x: bf16| x);

/// Index and value of the first entry that is infinite or NaN.
pub(super) fn not_finite<T: Element>(values: &[T]) -> Option<(usize, f32)> {
    // Test all values first: the usual case, and vectorised.
    let finite = values.iter().fold(true, |finite, value| finite & value.is_finite());
    if finite {
        return None;
    }
    let at = values.iter().position(|value| !value.is_finite())?;
    Some((at, values[at].widened()))
}
