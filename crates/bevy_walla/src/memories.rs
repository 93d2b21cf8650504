//! Memories of agents and shared lore.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bevy_app::prelude::*;
use bevy_ecs::lifecycle::HookContext;
use bevy_ecs::prelude::*;
use bevy_ecs::world::DeferredWorld;
#[cfg(feature = "reflect")]
use bevy_reflect::{Reflect, std_traits::ReflectDefault};
use walla_memory::{AgentRecall, LoreError, Memory, MemoryKey, RecallClient, StoreLimits, Tags};

use crate::bridge::EngineBridge;
use crate::engines::resolve_model;
use crate::systems::Schedules;
use crate::walla::Walla;

mod memorize;
mod memorized;
#[cfg(feature = "serialize")]
mod saved;
mod sync;
mod texts;

pub use memorize::{Memorizes, Remember, RememberCommands};
pub use texts::{MemoryTexts, MemoryTurn};

pub use walla_embed::{Embedder, EmbedderOptions, Embedding, Purpose};
pub use walla_memory::{
    EXCHANGE_TAG, EmbeddingState, Found, FoundEntry, OBSERVATION_TAG, PendingSearch, Recall,
    RecallOptions, RecallStats, Search,
};

/// Memory of an agent: text entries with game time, importance and tags, found at each ask.
///
/// Reading and writing are plain operations on the component. At an ask, entries that match the
/// question are found on another thread, and are part of the prompt as
/// [`Notes`](crate::ask::Notes): see there for their place. The ask is sent when they are found,
/// usually in the next frame. The component needs [`WallaMemoryPlugin`].
///
/// With the feature `serialize` it implements serde's traits, as a
/// [`SavedStore`](walla_memory::SavedStore); limits are not saved.
///
/// # Examples
/// ```
/// # use bevy_ecs::prelude::*;
/// use bevy_walla::memories::{AgentMemory, RememberCommands};
/// use bevy_walla::memory::Entry;
/// use bevy_walla::prelude::*;
/// fn setup(mut commands: Commands) {
///     let greta = commands.spawn((Agent::persona("You are Greta."), AgentMemory::default())).id();
///     commands.remember(greta, "The player owes 3 silver.");
/// }
/// fn forge_burns(mut memories: Query<&mut AgentMemory>) -> Result {
///     for mut memory in &mut memories {
///         memory.add(Entry::new("The forge burned down.").importance(0.9))?;
///     }
///     Ok(())
/// }
/// ```
#[derive(Component, Clone, Debug, Default, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq)
)]
#[require(AgentKnowledge)]
#[component(on_add = added)]
pub struct AgentMemory(pub Memory);

/// A memory without the plugin would be found by nothing.
fn added(mut world: DeferredWorld, context: HookContext) {
    let has_plugin = world.contains_resource::<MemoryService>();
    if !has_plugin && !world.contains_resource::<HasWarned>() {
        let agent = context.entity;
        tracing::warn!(target: "walla::memory", %agent, "AgentMemory has no effect without WallaMemoryPlugin");
        world.commands().insert_resource(HasWarned);
    }
}

/// The world has memories and no plugin for them, which was reported.
#[derive(Resource)]
struct HasWarned;

/// Entries that agents share, with tags and readers: a resource.
///
/// All agents with [`AgentKnowledge`] or [`AgentMemory`] find the entries that they [may
/// read](AgentKnowledge::reader). It can change at any time. It needs [`WallaMemoryPlugin`].
///
/// # Examples
/// ```
/// # use bevy_app::App;
/// use bevy_walla::memories::Lore;
/// use bevy_walla::{WallaMemoryPlugin, WallaPlugin};
/// let lore = Lore::from_text("The mill burned down.\n\n[visible_to: guards]\nThe mayor did it.")?;
/// App::new().add_plugins((WallaPlugin::model("m.gguf"), WallaMemoryPlugin::default())).insert_resource(lore);
/// # Ok::<(), bevy_walla::memory::LoreError>(())
/// ```
#[derive(Resource, Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Resource, Default, Clone, Debug, PartialEq)
)]
pub struct Lore(pub Memory);

macro_rules! entries {
    ($owner:ident) => {
        impl core::ops::Deref for $owner {
            type Target = Memory;

            fn deref(&self) -> &Memory {
                &self.0
            }
        }

        impl core::ops::DerefMut for $owner {
            fn deref_mut(&mut self) -> &mut Memory {
                &mut self.0
            }
        }
    };
}

entries!(AgentMemory);
entries!(Lore);

impl Lore {
    /// The entries of a lore text: paragraphs, divided by blank lines, with optional headers
    /// ([`Store::from_lore_text`](walla_memory::Store::from_lore_text)).
    ///
    /// # Errors
    /// [`LoreError`], which names the line.
    pub fn from_text(text: &str) -> Result<Self, LoreError> {
        Memory::from_lore_text(text).map(Self)
    }

    /// The entries of a JSON array
    /// ([`Store::from_lore_json`](walla_memory::Store::from_lore_json)).
    ///
    /// # Errors
    /// [`LoreError`], which names the line of a syntax error, or the index of an entry from 1.
    pub fn from_json(json: &str) -> Result<Self, LoreError> {
        Memory::from_lore_json(json).map(Self)
    }
}

impl Default for Lore {
    /// No entries.
    fn default() -> Self {
        Self(Memory::new(StoreLimits::lore()))
    }
}

/// Settings of the search at an agent's asks. [`AgentMemory`] requires it; alone, an agent
/// finds lore only.
#[derive(Component, Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "reflect",
    derive(Reflect),
    reflect(opaque, Component, Default, Clone, Debug, PartialEq)
)]
pub struct AgentKnowledge {
    /// Tags of the agent: entries with `visible_to` need one of them. Default: none.
    pub reader: Tags,
    /// Whether the [`Lore`] is searched. Default: `true`.
    pub reads_lore: bool,
    /// Only entries with one of these tags. Default: all.
    pub tags: Tags,
    /// Maximum number of entries in a prompt. Default: 5.
    pub max_entries: usize,
    /// Maximum tokens of these entries in a prompt. Default: 128.
    pub max_tokens: u32,
    /// First line of the entries in a prompt. Default: `You know:`.
    pub heading: Arc<str>,
    /// Maximum number of its latest [memorized](Memorizes) turns that are left out while they are
    /// in the conversation. Default: 6.
    pub recent_skipped: usize,
    /// Weights of the search.
    pub weights: walla_memory::Weights,
}

impl AgentKnowledge {
    /// An agent with these tags.
    #[must_use]
    pub fn reader<T: Into<Arc<str>>>(tags: impl IntoIterator<Item = T>) -> Self {
        Self { reader: tags.into_iter().collect(), ..Self::default() }
    }

    /// `recent`: memorized turns that are in the conversation.
    fn recall(&self, memories: Vec<MemoryKey>, recent: usize) -> AgentRecall {
        AgentRecall {
            memories,
            reader: self.reader.clone(),
            tags: self.tags.clone(),
            max_entries: self.max_entries,
            max_tokens: self.max_tokens,
            heading: Arc::clone(&self.heading),
            recent_skipped: self.recent_skipped.min(recent),
            weights: self.weights.clone(),
        }
    }
}

impl Default for AgentKnowledge {
    fn default() -> Self {
        let recall = AgentRecall::default();
        Self {
            reader: recall.reader,
            reads_lore: true,
            tags: recall.tags,
            max_entries: recall.max_entries,
            max_tokens: recall.max_tokens,
            heading: recall.heading,
            recent_skipped: recall.recent_skipped,
            weights: recall.weights,
        }
    }
}

/// Lore of an agent's character, which [`AgentKnowledge`] searches with the rest.
#[derive(Component, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentLore(pub Vec<MemoryKey>);

/// Game time of new entries, from which ages are counted. A resource that a game saves and
/// restores with its memories.
///
/// [`WallaMemoryPlugin`] adds the time of each frame (`Time<Virtual>` of Bevy's `TimePlugin`),
/// unless [`manual_time`](WallaMemoryPlugin::manual_time) leaves that to the game.
#[derive(Resource, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "reflect", derive(Reflect), reflect(Resource, Default, Debug, PartialEq))]
#[cfg_attr(feature = "serialize", derive(serde::Serialize, serde::Deserialize))]
pub struct MemoryTime(pub Duration);

/// The service that finds entries: its counters, direct searches, and the embedding model.
#[derive(Resource, Clone)]
pub struct MemoryService {
    recall: Recall,
    /// `None` before the engine's plugin is there.
    client: Option<RecallClient>,
}

impl MemoryService {
    /// The service: [`Recall::stats`], [`Recall::search`], [`Recall::set_embedder`].
    #[must_use]
    pub fn recall(&self) -> &Recall {
        &self.recall
    }
}

/// Adds [`AgentMemory`] of agents and [`Lore`], before or behind
/// [`WallaPlugin`](crate::WallaPlugin).
///
/// Entries are found by their words (BM25) and by their meaning, with an embedding model inside the
/// program (feature `minilm`, English), in [another file](Self::embedding_model), or
/// [none](Self::without_embedding_model). The model is loaded when the first entry is there. It
/// runs on the CPU, on a thread of low priority, within [`RecallOptions::embed_budget`]: while it
/// works, the frame budget of each engine on the CPU is lower by as much, but at most by half.
///
/// # Examples
/// ```no_run
/// # use bevy_app::App;
/// use bevy_walla::WallaMemoryPlugin;
/// use bevy_walla::memories::Lore;
/// use bevy_walla::prelude::*;
/// # fn run() -> Result<(), bevy_walla::memory::LoreError> {
/// App::new()
///     .add_plugins((
///         WallaPlugin::model("models/smith.gguf"),
///         WallaMemoryPlugin::default(),
///     ))
///     .insert_resource(Lore::from_text("The mill burned down in spring.")?)
///     .run();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct WallaMemoryPlugin {
    options: RecallOptions,
    model: EmbeddingModel,
    embedder: EmbedderOptions,
    has_manual_time: bool,
}

/// The embedding model of the plugin.
#[derive(Clone, Debug, Default)]
enum EmbeddingModel {
    #[cfg_attr(not(feature = "minilm"), default)]
    None,
    #[cfg(feature = "minilm")]
    #[default]
    BuiltIn,
    File(PathBuf),
}

impl WallaMemoryPlugin {
    /// Uses an embedding model in this GGUF file instead of the one inside the program: for another
    /// language, or for better vectors (`tools/embedding` converts the whole all-MiniLM-L6-v2). It
    /// loads on a thread when the first entry is there. If it cannot be loaded, entries are found
    /// by their words ([`Recall::embedding`]). A relative path is looked up as for
    /// [`WallaPlugin::model`](crate::WallaPlugin::model).
    #[must_use]
    pub fn embedding_model(self, path: impl Into<PathBuf>) -> Self {
        Self { model: EmbeddingModel::File(path.into()), ..self }
    }

    /// Finds entries by their words alone.
    #[must_use]
    pub fn without_embedding_model(self) -> Self {
        Self { model: EmbeddingModel::None, ..self }
    }

    /// Settings of the embedding model. Its budget is
    /// [`RecallOptions::embed_budget`](RecallOptions::embed_budget).
    #[must_use]
    pub fn embedder_options(self, options: EmbedderOptions) -> Self {
        Self { embedder: options, ..self }
    }

    /// Settings of the service.
    #[must_use]
    pub fn options(self, options: RecallOptions) -> Self {
        Self { options, ..self }
    }

    /// The game alone changes [`MemoryTime`].
    #[must_use]
    pub fn manual_time(self) -> Self {
        Self { has_manual_time: true, ..self }
    }

    /// Connects the service with the engine, once that is there. Returns whether it is.
    fn connect(&self, app: &mut App) -> bool {
        let world = app.world_mut();
        let MemoryService { recall, client, .. } = world.resource::<MemoryService>().clone();
        if client.is_some() {
            return true;
        }
        let Some(mut bridge) = world.get_resource_mut::<EngineBridge>() else { return false };
        let client = bridge.with_memories(&recall);
        world.resource_mut::<Walla>().set_client(client.clone());
        world.resource_mut::<MemoryService>().client = Some(client);
        let schedules = Schedules::of(app);
        sync::add_systems(app, schedules, self.has_manual_time);
        memorize::add_systems(app, schedules);
        true
    }
}

impl Plugin for WallaMemoryPlugin {
    fn build(&self, app: &mut App) {
        app.init_resource::<Lore>().init_resource::<MemoryTime>().init_resource::<MemoryTexts>();
        app.add_message::<Remember>();
        #[cfg(feature = "reflect")]
        app.register_type::<AgentMemory>()
            .register_type::<AgentKnowledge>()
            .register_type::<Memorizes>()
            .register_type::<Remember>()
            .register_type::<Lore>()
            .register_type::<MemoryTime>();
        let recall = Recall::new(self.options.clone());
        let options = self.embedder.clone();
        match &self.model {
            EmbeddingModel::None => {}
            #[cfg(feature = "minilm")]
            EmbeddingModel::BuiltIn => recall.load_embedder(move || Embedder::minilm(options)),
            EmbeddingModel::File(path) => {
                let path = path.clone();
                recall.load_embedder(move || {
                    let path = resolve_model(&path).map_err(|error| error.to_string())?;
                    Embedder::load(path, options).map_err(|error| error.to_string())
                });
            }
        }
        app.insert_resource(MemoryService { recall, client: None });
        sync::add_observers(app);
        memorize::add_observers(app);
        self.connect(app);
    }

    fn finish(&self, app: &mut App) {
        // It may have been added before WallaPlugin.
        if !self.connect(app) {
            tracing::warn!(target: "walla::memory", "WallaMemoryPlugin needs WallaPlugin");
        }
    }
}
