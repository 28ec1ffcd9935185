//! Models of a server by name: loaded, loading, or unloaded until a request names them.
//!
//! Each loaded model has an engine thread of its own. Loading evicts least recently used models
//! until the new one fits; idle models are unloaded after a timeout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use polydraft_runtime::message::command_line;
use polydraft_runtime::{available_memory, explain, release_freed_memory};
use tokio::sync::watch;

use crate::LoadedModel;
use crate::api::shared::error::Problem;
use crate::loaded_model::ServedModel;
use crate::options::ServerOptions;
use crate::telemetry::Metrics;

/// Loads a model. Called again if the model is needed after it was unloaded.
pub(crate) type Loader = Box<dyn Fn() -> anyhow::Result<ServedModel> + Send + Sync>;

/// A model as it is described before it is loaded.
pub(crate) struct ModelEntry {
    /// Names for clients; the first is the model's own.
    pub names: Vec<String>,
    /// Approximate bytes of the weights; 0 of a model that cannot be loaded again.
    pub bytes: u64,
    /// Loads the model.
    pub load: Loader,
}

/// Result of loading a model; `None` while it is loading.
type Outcome = Option<Result<Arc<LoadedModel>, Arc<anyhow::Error>>>;

enum State {
    Unloaded,
    Loading(watch::Receiver<Outcome>),
    Loaded(Arc<LoadedModel>, JoinHandle<()>),
}

struct Slot {
    entry: ModelEntry,
    state: Mutex<State>,
    last_used: Mutex<Instant>,
    /// Whether it is to be unloaded as soon as no request uses it.
    unloads: AtomicBool,
}

/// All models of a server.
pub(crate) struct Models {
    slots: Arc<[Arc<Slot>]>,
    options: Arc<ServerOptions>,
    metrics: Arc<Metrics>,
}

/// State of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Not loaded.
    Unloaded,
    /// Being loaded.
    Loading,
    /// Serves requests.
    Loaded,
    /// The engine thread is being stopped.
    Stopping,
}

/// Memory to leave free for KV caches and the rest, as a fraction of a model's weights.
const MEMORY_MARGIN: f64 = 0.2;

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last_used(&self) -> MutexGuard<'_, Instant> {
        self.last_used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_loaded(&self) -> bool {
        matches!(&*self.state(), State::Loaded(..))
    }

    fn is_busy(&self) -> bool {
        matches!(&*self.state(), State::Loaded(model, _) if model.engine.request_count() > 0)
    }

    fn is_named(&self, name: &str) -> bool {
        // Ollama's clients append a version.
        let name = name.strip_suffix(":latest").unwrap_or(name);
        self.entry.names.iter().any(|known| known == name)
    }

    /// Unloads the model if no request uses it. Returns whether it was unloaded.
    fn unload_if_unused(&self) -> bool {
        let mut state = self.state();
        match &*state {
            // `get_or_load` takes the same lock, so the count cannot grow meanwhile.
            State::Loaded(model, _)
                if model.engine.request_count() == 0 && Arc::strong_count(model) == 1 => {}
            _ => return false,
        }
        let State::Loaded(model, thread) = std::mem::replace(&mut *state, State::Unloaded) else {
            return false;
        };
        log::info!("unloaded {}", model.name());
        // The engine thread has no requests left, and ends.
        model.engine.stop(Duration::ZERO);
        drop(model);
        thread.join().is_ok()
    }
}

impl Models {
    /// Creates the models, all unloaded.
    pub fn new(entries: Vec<ModelEntry>, options: Arc<ServerOptions>) -> Self {
        let slot = |entry| {
            let (state, last_used) = (Mutex::new(State::Unloaded), Mutex::new(Instant::now()));
            Arc::new(Slot { entry, state, last_used, unloads: AtomicBool::new(false) })
        };
        let slots = entries.into_iter().map(slot).collect();
        Self { slots, options, metrics: Metrics::new() }
    }

    /// Creates a single model that is already loaded.
    ///
    /// # Errors
    /// The engine thread cannot be started.
    pub fn with_loaded(
        served: ServedModel,
        names: Vec<String>,
        options: Arc<ServerOptions>,
    ) -> std::io::Result<Self> {
        let metrics = Metrics::new();
        let telemetry = metrics.for_model(None);
        let (model, thread) =
            LoadedModel::start(served, names.clone(), options.clone(), telemetry)?;
        let load: Loader = Box::new(|| Err(anyhow::anyhow!("this model cannot be loaded again")));
        let slot = Slot {
            entry: ModelEntry { names, bytes: 0, load },
            state: Mutex::new(State::Loaded(model, thread)),
            last_used: Mutex::new(Instant::now()),
            unloads: AtomicBool::new(false),
        };
        Ok(Self { slots: [Arc::new(slot)].into(), options, metrics })
    }

    /// Counters and timers of all models.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Options of the server.
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Names and status of every model, and the model itself if it is loaded.
    pub fn all(&self) -> impl Iterator<Item = (&[String], Status, Option<Arc<LoadedModel>>)> {
        self.slots.iter().map(|slot| {
            let (status, model) = match &*slot.state() {
                State::Unloaded => (Status::Unloaded, None),
                State::Loading(_) => (Status::Loading, None),
                State::Loaded(model, _) if model.engine.is_stopping() => {
                    (Status::Stopping, Some(model.clone()))
                }
                State::Loaded(model, _) => (Status::Loaded, Some(model.clone())),
            };
            (&slot.entry.names[..], status, model)
        })
    }

    /// Returns the model of this name, or the first one if no name is given. Loads it if necessary.
    ///
    /// # Errors
    /// Unknown name; the model cannot be loaded.
    pub async fn get_or_load(&self, name: Option<&str>) -> Result<Arc<LoadedModel>, Problem> {
        let slot = match name {
            None => self.slots.first(),
            Some(name) => self.slots.iter().find(|slot| slot.is_named(name)).or_else(|| {
                let takes_any = self.options.any_model_name && self.slots.len() == 1;
                self.slots.first().filter(|_| takes_any)
            }),
        };
        let slot = slot.ok_or_else(|| self.unknown_model(name.unwrap_or_default()))?;
        *slot.last_used() = Instant::now();
        slot.unloads.store(false, Ordering::Relaxed);
        self.wait_until_loaded(slot).await.map_err(|error| {
            let problem = format!("the model cannot be loaded: {}", explain(&error, command_line));
            log::error!("{problem}");
            Problem::unavailable(problem).with_param("model")
        })
    }

    /// Loads and returns the first model; `None` if there are no models.
    ///
    /// # Errors
    /// Errors of loading the model.
    pub async fn load_first(&self) -> Result<Option<Arc<LoadedModel>>, Arc<anyhow::Error>> {
        match self.slots.first() {
            Some(slot) => self.wait_until_loaded(slot).await.map(Some),
            None => Ok(None),
        }
    }

    async fn wait_until_loaded(
        &self,
        slot: &Arc<Slot>,
    ) -> Result<Arc<LoadedModel>, Arc<anyhow::Error>> {
        let mut loading = {
            let mut state = slot.state();
            match &*state {
                State::Loaded(model, _) => return Ok(model.clone()),
                State::Loading(outcome) => outcome.clone(),
                State::Unloaded => {
                    let outcome = self.start_loading(slot.clone());
                    *state = State::Loading(outcome.clone());
                    outcome
                }
            }
        };
        let outcome = loading.wait_for(Option::is_some).await;
        let outcome = outcome.ok().and_then(|outcome| outcome.clone());
        outcome.unwrap_or_else(|| Err(Arc::new(anyhow::anyhow!("loading was interrupted"))))
    }

    fn unknown_model(&self, name: &str) -> Problem {
        let names = self.slots.iter().flat_map(|slot| &slot.entry.names);
        let known_names: Vec<String> = names.map(|name| format!("{name:?}")).collect();
        let known_names = known_names.join(", ");
        let problem =
            Problem::invalid(format_args!("unknown model {name:?}, expected one of {known_names}"));
        problem.with_param("model").with_code("model_not_found").with_status(StatusCode::NOT_FOUND)
    }

    /// Starts loading a model. The load continues if no request waits for it any longer.
    fn start_loading(&self, slot: Arc<Slot>) -> watch::Receiver<Outcome> {
        let (sender, outcome) = watch::channel(None);
        let (slots, options, metrics) =
            (self.slots.clone(), self.options.clone(), self.metrics.clone());
        tokio::task::spawn_blocking(move || {
            evict_until_fits(&slots, slot.entry.bytes);
            let label = (slots.len() > 1).then(|| slot.entry.names[0].clone());
            let loaded = (slot.entry.load)().and_then(|served| {
                let names = slot.entry.names.clone();
                Ok(LoadedModel::start(served, names, options, metrics.for_model(label))?)
            });
            let mut state = slot.state();
            let outcome = match loaded {
                Ok((model, thread)) => {
                    *state = State::Loaded(model.clone(), thread);
                    Ok(model)
                }
                Err(error) => {
                    *state = State::Unloaded;
                    Err(Arc::new(error))
                }
            };
            drop(state);
            // The requests that waited may have gone away.
            let _ = sender.send(Some(outcome));
        });
        outcome
    }

    /// Unloads a model that no other request uses and that can be loaded again.
    pub async fn unload(&self, model: Arc<LoadedModel>) {
        let is_it = |slot: &&Arc<Slot>| match &*slot.state() {
            State::Loaded(loaded, _) => Arc::ptr_eq(loaded, &model),
            _ => false,
        };
        let slot = self.slots.iter().find(is_it).filter(|slot| slot.entry.bytes > 0).cloned();
        drop(model);
        if let Some(slot) = slot {
            // One in use is unloaded later.
            slot.unloads.store(true, Ordering::Relaxed);
            let _ = tokio::task::spawn_blocking(move || slot.unload_if_unused()).await;
        }
    }

    /// Unloads models that have been idle for at least `after`, or that are to be unloaded.
    pub fn unload_idle(&self, after: Duration) {
        for slot in &*self.slots {
            if slot.is_busy() {
                *slot.last_used() = Instant::now();
            }
            let idle = slot.last_used().elapsed();
            let unloads = slot.unloads.load(Ordering::Relaxed) && !slot.is_busy();
            if (idle >= after || unloads) && slot.is_loaded() {
                let slot = slot.clone();
                tokio::task::spawn_blocking(move || slot.unload_if_unused());
            }
        }
    }

    /// Rejects new requests and lets running ones finish within this time. Returns whether all
    /// engine threads ended without panic.
    pub async fn stop(&self, within: Duration) -> bool {
        let mut threads = Vec::new();
        for slot in &*self.slots {
            let mut state = slot.state();
            if let State::Loaded(model, _) = &*state {
                log::info!("stopping {}; requests: {}", model.name(), model.engine.request_count());
                model.engine.stop(within);
                if let State::Loaded(_, thread) = std::mem::replace(&mut *state, State::Unloaded) {
                    threads.push(thread);
                }
            }
        }
        let ended = tokio::task::spawn_blocking(move || {
            // Join every thread, even if an earlier one panicked.
            let failed = threads.into_iter().filter_map(|thread| thread.join().err()).count();
            failed == 0
        });
        ended.await.unwrap_or(false)
    }
}

/// Evicts least recently used models until `bytes` and the margin fit into free memory.
fn evict_until_fits(slots: &[Arc<Slot>], bytes: u64) {
    let required = (bytes as f64 * (1.0 + MEMORY_MARGIN)) as u64;
    let mut by_last_use: Vec<&Arc<Slot>> = slots.iter().filter(|slot| slot.is_loaded()).collect();
    by_last_use.sort_by_key(|slot| *slot.last_used());
    for slot in by_last_use {
        if available_memory().is_none_or(|free| free >= required) {
            return;
        }
        slot.unload_if_unused();
        release_freed_memory();
    }
}
