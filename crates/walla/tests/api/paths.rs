//! Files in folders whose names a system or a careless program treats specially.

use std::path::{Path, PathBuf};

use walla::record::Recording;
use walla::{AgentSpec, Engine, EngineOptions, ModelSource};

use crate::host::{model, options, soon, speaker};

#[tokio::test]
async fn files_may_be_in_any_folder() {
    let root = tempfile::tempdir().unwrap();
    // Windows limits paths of the common form to 260 characters.
    let deep: PathBuf = (0..8).map(|_| "a".repeat(40)).collect();
    let names = ["with two spaces", "Grüße, Zoë", "鍛冶屋", "100%", "a'b$c&d"].map(PathBuf::from);
    for name in names.iter().chain([&deep]) {
        let folder = root.path().join(name).join("x");
        std::fs::create_dir_all(&folder).unwrap();
        keep_everything_in(&folder, 1).await;
        // On Windows the form without limits. `canonicalize` has it too, but not in wine for a path
        // as deep as this.
        let prefix = if cfg!(windows) { r"\\?\" } else { "" };
        let unlimited = format!("{prefix}{}", folder.display());
        keep_everything_in(Path::new(&unlimited), 2).await;
    }
}

/// Loads a model from the folder, and writes a recording and a cache file to it, which are read
/// again.
async fn keep_everything_in(folder: &Path, seed: u64) {
    let path = folder.join("model.gguf");
    std::fs::write(&path, model()).unwrap();
    let options = EngineOptions { model: ModelSource::Path(path), ..options() };
    let recording = folder.join("session.walla");
    let engine = Engine::builder(options).record_to(&recording).start().await.unwrap();
    let spec = AgentSpec { persona: "the inn stands by the ford ".repeat(4), ..speaker(seed, 8) };
    let agent = engine.agent_with(spec);
    soon("a reply", agent.ask("Who are you?").finish()).await.unwrap();
    let cache = folder.join("agent.kv");
    let saved = soon("the save", agent.save_cache(&cache)).await.unwrap();
    assert_eq!(saved.file_bytes, std::fs::metadata(&cache).unwrap().len());
    soon("the load", agent.load_cache(&cache)).await.unwrap();
    soon("it stops", engine.stop()).await;
    assert!(Recording::open(&recording).unwrap().is_complete());
}
