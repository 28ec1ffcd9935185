//! Names of models, for the lists of all protocols.

use std::sync::Arc;

use crate::LoadedModel;
use crate::models::{Models, Status};

/// Names of all models, their status, and the model if it is loaded.
pub fn named_models(models: &Models) -> Vec<(String, Status, Option<Arc<LoadedModel>>)> {
    let entries = |(names, status, model): (&[String], Status, Option<Arc<LoadedModel>>)| {
        names.iter().map(|name| (name.clone(), status, model.clone())).collect::<Vec<_>>()
    };
    models.all().flat_map(entries).collect()
}
