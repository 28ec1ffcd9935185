//! Arrays of Python, looked at where they lie.
//!
//! numpy arrays and whatever speaks DLPack (torch's tensors, JAX's arrays) are not copied; lists
//! are, and so are numbers in float16 and bfloat16, as float32. Others are f32 or f64; memory is
//! the CPU's, and the numbers of a row are contiguous. Anything else is refused, with what would
//! help.

use numpy::ndarray::{ArrayViewD, Axis};
use numpy::{
    Element, PyArray1, PyArrayDescrMethods, PyReadonlyArrayDyn, PyUntypedArray,
    PyUntypedArrayMethods,
};
use polydraft::{Distribution, Sampling, Token};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::errors::{Failure, Result};
use crate::pool;

/// One row of numbers.
#[derive(Clone, Copy)]
pub enum Row<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Double precision.
    F64(&'a [f64]),
}

impl Row<'_> {
    /// The distribution of these logits. Models compute in single precision, and so does the
    /// softmax.
    pub fn distribution(self, sampling: &Sampling) -> polydraft::Result<Distribution> {
        match self {
            Self::F32(logits) => pool::probs(logits, sampling),
            Self::F64(logits) => {
                pool::probs(&logits.iter().map(|x| *x as f32).collect::<Vec<_>>(), sampling)
            }
        }
    }

    /// Makes a draft's distribution, which keeps its confidence at temperature 0 too.
    pub fn drafted(self, sampling: &Sampling) -> polydraft::Result<Distribution> {
        match self {
            Self::F32(logits) => pool::drafted(logits, sampling),
            Self::F64(logits) => {
                pool::drafted(&logits.iter().map(|x| *x as f32).collect::<Vec<_>>(), sampling)
            }
        }
    }

    /// Number of values.
    pub fn len(self) -> usize {
        match self {
            Self::F32(row) => row.len(),
            Self::F64(row) => row.len(),
        }
    }

    /// Copies the values to f64, the type of probabilities.
    pub fn to_vec(self) -> Vec<f64> {
        match self {
            Self::F32(row) => row.iter().map(|x| f64::from(*x)).collect(),
            Self::F64(row) => row.to_vec(),
        }
    }
}

/// One array.
enum ReadableArray<'py> {
    F32(PyReadonlyArrayDyn<'py, f32>),
    F64(PyReadonlyArrayDyn<'py, f64>),
}

/// Arrays whose rows are looked at while this lives.
pub struct Rows<'py> {
    what: &'static str,
    parts: Vec<ReadableArray<'py>>,
}

impl<'py> Rows<'py> {
    /// A matrix, or a list of rows (`None` is an empty one); `what` it is, for messages.
    pub fn new(what: &'static str, value: &Bound<'py, PyAny>) -> Result<Self> {
        let rows = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
        let nested = rows && value.get_item(0).is_ok_and(|first| first.extract::<f64>().is_err());
        if !nested {
            return Ok(Self { what, parts: vec![readable_array(what, value, 2)?] });
        }
        let parts = value.try_iter()?.map(|row| {
            let row = row?;
            match row.is_none() {
                true => {
                    readable_array(what, PyArray1::<f32>::zeros(row.py(), 0, false).as_any(), 1)
                }
                false => readable_array(what, &row, 1),
            }
        });
        Ok(Self { what, parts: parts.collect::<Result<_>>()? })
    }

    /// A single row.
    pub fn one(what: &'static str, value: &Bound<'py, PyAny>) -> Result<Self> {
        Ok(Self { what, parts: vec![readable_array(what, value, 1)?] })
    }

    /// The rows, first to last.
    pub fn slices(&self) -> Result<Vec<Row<'_>>> {
        let mut rows = Vec::new();
        for part in &self.parts {
            match part {
                ReadableArray::F32(array) => {
                    slices(self.what, array.as_array(), Row::F32, &mut rows)?
                }
                ReadableArray::F64(array) => {
                    slices(self.what, array.as_array(), Row::F64, &mut rows)?
                }
            }
        }
        Ok(rows)
    }
}

fn slices<'a, T>(
    what: &str,
    view: ArrayViewD<'a, T>,
    row: impl Fn(&'a [T]) -> Row<'a>,
    into: &mut Vec<Row<'a>>,
) -> Result<()> {
    if view.ndim() == 1 {
        into.push(row(view.to_slice().ok_or_else(|| gaps(what))?));
        return Ok(());
    }
    for index in 0..view.shape()[0] {
        into.push(row(view
            .clone()
            .index_axis_move(Axis(0), index)
            .to_slice()
            .ok_or_else(|| gaps(what))?));
    }
    Ok(())
}

fn gaps(what: &str) -> Failure {
    Failure::input(format!(
        "{what}: expected rows of contiguous numbers, got others; \
         numpy.ascontiguousarray makes them so"
    ))
}

fn readable_array<'py>(
    what: &str,
    value: &Bound<'py, PyAny>,
    dimensions: usize,
) -> Result<ReadableArray<'py>> {
    let array = array(what, value)?;
    if array.ndim() != dimensions {
        let shape =
            ["a row, of shape [vocabulary]", "rows, of shape [rows, vocabulary]"][dimensions - 1];
        return Err(Failure::input(format!(
            "{what}: expected {shape}, got shape {:?}",
            array.shape()
        )));
    }
    let array = widened(array)?;
    if let Ok(array) = array.cast::<numpy::PyArrayDyn<f32>>() {
        return Ok(ReadableArray::F32(readable(what, array)?));
    }
    match array.cast::<numpy::PyArrayDyn<f64>>() {
        Ok(array) => Ok(ReadableArray::F64(readable(what, array)?)),
        Err(_) => {
            let got = array.dtype();
            Err(Failure::input(format!(
                "{what}: expected numbers in float16, float32 or float64, got {got}"
            )))
        }
    }
}

/// Converts float16 to float32, without loss; other arrays stay.
fn widened(array: Bound<'_, PyUntypedArray>) -> Result<Bound<'_, PyUntypedArray>> {
    let dtype = array.dtype();
    if (dtype.kind(), dtype.itemsize()) != (b'f', 2) {
        return Ok(array);
    }
    let wide = array.call_method1("astype", ("float32",))?;
    Ok(wide.cast_into::<PyUntypedArray>().map_err(PyErr::from)?)
}

/// Detaches a tensor of torch from its gradients, and widens bfloat16, which numpy lacks.
fn exportable<'py>(value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
    let mut value = value.clone();
    if value.hasattr("requires_grad")? && value.getattr("requires_grad")?.is_truthy()? {
        value = value.call_method0("detach")?;
    }
    let is_bfloat16 = value.hasattr("float")?
        && value.getattr("dtype").is_ok_and(|dtype| dtype.to_string().ends_with("bfloat16"));
    Ok(if is_bfloat16 { value.call_method0("float")? } else { value })
}

fn readable<'py, T: Element>(
    what: &str,
    array: &Bound<'py, numpy::PyArrayDyn<T>>,
) -> Result<PyReadonlyArrayDyn<'py, T>> {
    use numpy::PyArrayMethods;
    // The view counts strides in numbers and rounds those that are none, as between the fields of
    // packed records.
    let size = size_of::<T>() as isize;
    let mut steps = array.shape().iter().zip(array.strides());
    if steps.any(|(length, stride)| *length > 1 && stride % size != 0) {
        return Err(gaps(what));
    }
    if !array.data().is_aligned() {
        return Err(Failure::input(format!(
            "{what}: expected numbers at addresses that are multiples of their size, got others; a \
             copy has them there"
        )));
    }
    array.try_readonly().map_err(|error| Failure::input(format!("{what}: {error}")))
}

/// Anything that is an array, as one of numpy.
fn array<'py>(what: &str, value: &Bound<'py, PyAny>) -> Result<Bound<'py, PyUntypedArray>> {
    /// `kDLCPU` of DLPack.
    const PROCESSOR: i64 = 1;
    let py = value.py();
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let numpy = py.import("numpy")?;
    let converted = if value.hasattr("__dlpack__")? {
        let device = value.call_method0("__dlpack_device__").and_then(|device| device.get_item(0));
        let device: Option<i64> =
            device.ok().and_then(|device| device.call_method0("__int__").ok()?.extract().ok());
        if device != Some(PROCESSOR) {
            let device = device.map_or_else(|| "none at all".to_owned(), device_name);
            return Err(Failure::input(format!(
                "{what}: expected an array in the CPU's memory, got one on {device}; move it \
                 there first, with \
                 .cpu() for a tensor"
            )));
        }
        numpy.call_method1("from_dlpack", (exportable(value)?,)).map_err(|error| {
            let kind = value
                .getattr("dtype")
                .map_or_else(|_| "unknown".to_owned(), |dtype| dtype.to_string());
            Failure::input(format!(
                "{what}: expected an array in float16, float32 or float64, got {kind}: {error}"
            ))
        })?
    } else {
        let given = value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
        if !given {
            return Err(crate::errors::wrong_type(
                what,
                "a numpy array, something with __dlpack__ (a tensor), or a list of numbers",
                value,
            ));
        }
        numpy.call_method1("asarray", (value, "float64"))?
    };
    Ok(converted.cast_into::<PyUntypedArray>().map_err(PyErr::from)?)
}

fn device_name(number: i64) -> String {
    let name = match number {
        2 => "CUDA",
        3 => "CUDA's pinned memory",
        4 => "OpenCL",
        7 => "Vulkan",
        8 => "Metal",
        10 => "ROCm",
        13 => "CUDA's managed memory",
        14 => "oneAPI",
        _ => return format!("DLPack's device type {number}"),
    };
    name.to_owned()
}

/// Token ids, of any integer type: `[n]`.
pub fn tokens(what: &str, value: &Bound<'_, PyAny>) -> Result<Vec<Token>> {
    integers(what, value)?
        .into_iter()
        .map(|id| {
            Token::try_from(id).map_err(|_| {
                Failure::input(format!("{what}: expected token ids from 0 to 2^32 - 1, got {id}"))
            })
        })
        .collect()
}

/// Integers of any type: `[n]`. A few numbers, so they are copied.
pub fn integers(what: &str, value: &Bound<'_, PyAny>) -> Result<Vec<i64>> {
    if let Ok(list) = value.extract::<Vec<i64>>() {
        return Ok(list);
    }
    let list = match value.hasattr("tolist")? {
        true => value.call_method0("tolist")?,
        false => value.clone(),
    };
    let wrong =
        || crate::errors::wrong_type(what, "a list or a one-dimensional array of integers", value);
    list.extract().map_err(|_| wrong())
}
