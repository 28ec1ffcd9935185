//! Activation functions by their names in Hugging Face transformers.

use polydraft_kernels::Activation;
use polydraft_text::Fields;

const ALL: [(&str, Activation); 6] = [
    ("silu", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("relu", Activation::Relu),
    ("relu2", Activation::ReluSquared),
];

/// Reads the activation from a field of `config.json`.
pub(crate) fn activation(
    fields: &Fields,
    field: &str,
    default: &str,
) -> Result<Activation, String> {
    let name = fields.get::<String>(field)?.unwrap_or_else(|| default.to_owned());
    let found = ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, activation)| *activation).ok_or_else(|| {
        let known = ALL.map(|(name, _)| name);
        format!("{field}: expected one of {}, got {name:?}", known.join(", "))
    })
}
