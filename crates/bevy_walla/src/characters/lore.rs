//! Lore as assets.

use std::collections::{HashMap, HashSet};

use bevy_asset::io::Reader;
use bevy_asset::prelude::*;
use bevy_asset::{AssetLoader, LoadContext};
use bevy_ecs::entity_disabling::Disabled;
use bevy_ecs::prelude::*;
use bevy_reflect::TypePath;
use walla_memory::{LoreError, Memory};

use super::{Applied, file};
use crate::memories::{AgentLore, MemoryService};

/// Entries of a lore file, which the agents of the characters that name it find at their asks.
#[derive(Asset, Clone, Debug, PartialEq, TypePath)]
pub struct LoreFile(pub Memory);

/// Why a lore file was not loaded. Bevy's message adds the path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoreLoadError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The content; the error names the line.
    #[error(transparent)]
    Content(#[from] LoreError),
}

/// Loads `.lore` and `.lore.json`.
#[derive(Clone, Copy, Debug, Default, TypePath)]
pub struct LoreLoader;

impl AssetLoader for LoreLoader {
    type Asset = LoreFile;
    type Error = LoreLoadError;
    type Settings = ();

    async fn load(
        &self,
        reader: &mut dyn Reader,
        (): &(),
        context: &mut LoadContext<'_>,
    ) -> Result<LoreFile, LoreLoadError> {
        let text = file::read_text(reader).await?;
        let is_json = context.path().path().extension().is_some_and(|ending| ending == "json");
        let memory =
            if is_json { Memory::from_lore_json(&text) } else { Memory::from_lore_text(&text) };
        Ok(LoreFile(memory?))
    }

    fn extensions(&self) -> &[&str] {
        &["lore", "lore.json"]
    }
}

/// The lore that was loaded, as the service has it.
#[derive(Resource, Default)]
pub(super) struct LoreFiles(HashMap<AssetId<LoreFile>, Memory>);

/// An agent with a character, and the lore that it knows.
type OfCharacter = (Entity, Ref<'static, Applied>, Option<&'static AgentLore>);

/// Sends loaded lore to the service, and stores the keys of its lore with each agent.
pub(super) fn send_lore(
    mut changes: MessageReader<AssetEvent<LoreFile>>,
    files: Res<Assets<LoreFile>>,
    service: Option<Res<MemoryService>>,
    mut lore: ResMut<LoreFiles>,
    agents: Query<OfCharacter, Allow<Disabled>>,
    mut commands: Commands,
    mut has_warned: Local<bool>,
) {
    let mut changed = HashSet::new();
    for change in changes.read() {
        match change {
            AssetEvent::Added { id } | AssetEvent::Modified { id } => {
                // Another key: searches that were begun before have the old content.
                let content = files.get(*id).map(|file| file.0.clone());
                content.map(|content| lore.0.insert(*id, content));
                changed.insert(*id);
            }
            AssetEvent::Removed { id } => {
                lore.0.remove(id);
                changed.insert(*id);
            }
            _ => {}
        }
    }
    let Some(service) = service else {
        if !*has_warned && agents.iter().any(|(_, applied, _)| !applied.0.lore_files.is_empty()) {
            *has_warned = true;
            tracing::warn!(target: "walla::memory", "lore of characters has no effect without WallaMemoryPlugin");
        }
        return;
    };
    for memory in lore.0.values_mut() {
        if let Err(error) = service.recall().update(memory) {
            tracing::debug!(target: "walla::memory", %error, "lore is sent later");
        }
    }
    for (agent, applied, current) in &agents {
        let handles = &applied.0.lore_files;
        if !applied.is_changed() && !handles.iter().any(|handle| changed.contains(&handle.id())) {
            continue;
        }
        let keys = handles.iter().filter_map(|handle| lore.0.get(&handle.id()));
        let keys = AgentLore(keys.map(Memory::key).collect());
        if current != Some(&keys) {
            commands.entity(agent).insert(keys);
        }
    }
}
