//! Tensors of safetensors files.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
pub use safetensors::Dtype;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

pub type Tensors = HashMap<String, Tensor>;

#[derive(Debug, Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// Tensor of numbers, rounded to a type.
    pub fn new(values: &[f32], shape: &[usize], dtype: Dtype) -> Self {
        assert_eq!(values.len(), shape.iter().product::<usize>());
        let bytes = match dtype {
            Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            Dtype::BF16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            other => panic!("{other:?}"),
        };
        Self { dtype, shape: shape.to_vec(), bytes }
    }

    /// Vector of integers.
    pub fn from_integers(numbers: &[i64]) -> Self {
        let bytes = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Self { dtype: Dtype::I64, shape: vec![numbers.len()], bytes }
    }

    /// Tensor of bytes.
    pub fn from_bytes(bytes: Vec<u8>, shape: &[usize]) -> Self {
        assert_eq!(bytes.len(), shape.iter().product::<usize>());
        Self { dtype: Dtype::U8, shape: shape.to_vec(), bytes }
    }

    /// Tensor of a type, from its bytes.
    pub fn from_raw(bytes: Vec<u8>, shape: &[usize], dtype: Dtype) -> Self {
        Self { dtype, shape: shape.to_vec(), bytes }
    }

    /// Bytes in the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Tensor of zeros of a 32-bit type.
    pub fn zeros(shape: &[usize], dtype: Dtype) -> Self {
        Self { dtype, shape: shape.to_vec(), bytes: vec![0; 4 * shape.iter().product::<usize>()] }
    }

    /// Values as f32.
    pub fn values(&self) -> Vec<f32> {
        let pairs = || self.bytes.as_chunks::<2>().0.iter();
        match self.dtype {
            Dtype::F32 => {
                self.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
            }
            Dtype::F16 => pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::BF16 => pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::I64 => self.integers().into_iter().map(|x| x as f32).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Rows of values as f32.
    pub fn rows(&self) -> Vec<Vec<f32>> {
        let [_, width] = self.shape[..] else { panic!("{:?}", self.shape) };
        self.values().chunks_exact(width).map(<[f32]>::to_vec).collect()
    }

    /// Values of an integer tensor.
    pub fn integers(&self) -> Vec<i64> {
        assert_eq!(self.dtype, Dtype::I64);
        self.bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
    }

    /// Copy in another type, rounded or widened.
    pub fn to_dtype(&self, dtype: Dtype) -> Self {
        Self::new(&self.values(), &self.shape, dtype)
    }

    /// Copy without the last entry of the first dimension.
    pub fn without_last_row(&self) -> Self {
        let mut shape = self.shape.clone();
        let row = self.bytes.len() / shape[0];
        shape[0] -= 1;
        let bytes = self.bytes[..shape[0] * row].to_vec();
        Self { dtype: self.dtype, shape, bytes }
    }
}

pub fn read_tensors(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (&str, TensorView)| {
        let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
        (name.to_owned(), Tensor { dtype: view.dtype(), shape, bytes })
    };
    tensors.iter().map(tensor).collect()
}

pub fn write_tensors(tensors: &Tensors, path: &Path) {
    let views = tensors.iter().map(|(name, Tensor { dtype, shape, bytes })| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}
