//! Names of models, for the lists of all protocols.

use std::collections::HashSet;
use std::sync::Arc;

use crate::App;
use crate::fleet::{Fleet, Status};

/// Every name that a client may say, and the model, if it is loaded.
pub fn named(fleet: &Fleet) -> Vec<(String, Status, Option<Arc<App>>)> {
    let of = |(names, status, app): (&[String], Status, Option<Arc<App>>)| {
        let own = app.as_ref().map_or("", |app| app.name());
        let names =
            names.iter().map(|name| if name == "*" { own.to_owned() } else { name.clone() });
        let mut names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
        // '*' beside a name of its own says nothing further.
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(name.clone()));
        names.into_iter().map(move |name| (name, status, app.clone())).collect::<Vec<_>>()
    };
    fleet.all().flat_map(of).collect()
}
