//! Names of models, for the lists of all protocols.

use std::collections::HashSet;
use std::sync::Arc;

use crate::LoadedModel;
use crate::models::{Models, Status};

/// Names of all models, their status, and the model if it is loaded.
pub fn named_models(models: &Models) -> Vec<(String, Status, Option<Arc<LoadedModel>>)> {
    let entries = |(names, status, model): (&[String], Status, Option<Arc<LoadedModel>>)| {
        let model_name = model.as_ref().map_or("", |model| model.name());
        let names =
            names.iter().map(|name| if name == "*" { model_name.to_owned() } else { name.clone() });
        let mut names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
        // `*` adds nothing if the name is listed.
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names.into_iter().map(move |name| (name, status, model.clone())).collect::<Vec<_>>()
    };
    models.all().flat_map(entries).collect()
}
