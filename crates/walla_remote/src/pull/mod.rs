//! Models from a registry, into files (feature `pull`).
//!
//! The protocol is Ollama's form of the OCI distribution interface, which Hugging Face serves too:
//! `GET {registry}/v2/{name}/manifests/{tag}` names the file by its size and SHA-256, and
//! `GET {registry}/v2/{name}/blobs/{digest}` sends it. Only [`pull`] fetches something.
//!
//! # Files
//! For `OWNER/MODEL:TAG` the folder gets `MODEL-TAG.gguf`, and `MODEL-TAG.license.txt` if the
//! registry has a text of the licence. A download is written to `MODEL-TAG.gguf.part`, which is
//! locked while it is written, and gets its name when size and digest are right. The partial file
//! of an earlier call is continued.
//!
//! # Trust
//! The digest comes from the registry, so it protects against damage and against the servers to
//! which the registry redirects, not against the registry. A connection that begins with `https`
//! never continues without encryption. An address without a scheme means `https`; `http://` is
//! used if it is written, and another machine then gets no key.

mod error;
mod file;
mod name;
mod registry;

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use walla_runtime::replace::replace;

pub use error::PullError;

use crate::key::ApiKey;
use crate::options::Retries;
use crate::proxy::Proxy;
use file::{PartFile, has_digest};
use name::Name;
use registry::{Attempts, Layer, Registry};

/// The default registry.
pub const DEFAULT_REGISTRY: &str = "https://huggingface.co";

/// Maximum bytes of a manifest and of the text of a licence.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// A model, its registry and its folder.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PullOptions {
    /// `OWNER/MODEL[:TAG]`. Without a tag it is `latest`, without an owner it is `library`, as in
    /// Ollama. At Hugging Face the tag is the type of the weights, such as `Q8_0`, or the name of a
    /// file, and `latest` is `Q4_K_M` or a similar type.
    pub name: String,
    /// Address of the registry. Default: [`DEFAULT_REGISTRY`].
    pub registry: String,
    /// Folder of the files; it is created if it does not exist. Default: the current one.
    pub folder: PathBuf,
    /// Replaces a file that has other content. Default: `false`.
    pub force: bool,
    /// Key for private models, sent to the registry alone. Default: none.
    pub key: Option<ApiKey>,
    /// Default: [`Proxy::Environment`].
    pub proxy: Proxy,
    /// Retries of a request. A new count begins after each mebibyte that arrives. Default: 5, with
    /// pauses from 500 ms to 16 s.
    pub retries: Retries,
    /// Maximum time for a connection, without a byte from the server, and with less than 1 KiB a
    /// second. Default: 30 s.
    pub stall: Duration,
}

impl PullOptions {
    /// Default options.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let (pause_min, max_pause) = (Duration::from_millis(500), Duration::from_secs(16));
        Self {
            name: name.into(),
            registry: DEFAULT_REGISTRY.to_owned(),
            folder: PathBuf::new(),
            force: false,
            key: None,
            proxy: Proxy::default(),
            retries: Retries { max_retries: 5, pause_min, max_pause },
            stall: Duration::from_secs(30),
        }
    }
}

/// What happens during [`pull`].
#[derive(Debug)]
#[non_exhaustive]
pub enum PullEvent<'a> {
    /// The text of the licence, before the model is fetched.
    License(&'a str),
    /// Bytes of the file that are here, of its size. They decrease when a download begins again.
    Bytes {
        /// Here.
        done: u64,
        /// The whole file.
        total: u64,
    },
    /// A request failed and is repeated after the pause.
    Retry(&'a PullError, Duration),
    /// Another machine is reached without encryption: anyone on the way can replace the model.
    /// The registry, or a server to which a registry without encryption redirects.
    Unencrypted,
    /// The content is not that of the digest, so the download begins again: the partial file was
    /// damaged, or of another version of the model.
    Restart,
}

/// Receives events.
type Events<'a> = &'a mut (dyn FnMut(PullEvent<'_>) + Send);

/// A model that is here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pulled {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The file with the text of the licence, if the registry has one.
    pub license: Option<PathBuf>,
    /// The file was here before.
    pub was_here: bool,
}

/// Fetches a model, unless the file is here with the right content. Files are read and written on
/// the thread that polls the future; a thread of a game's frame should not.
///
/// # Errors
/// [`PullError`]. A partial file stays for the next call, unless its content is wrong.
///
/// # Cancel safety
/// Dropping the future keeps the partial file for the next call.
pub async fn pull(
    options: &PullOptions,
    events: &mut (dyn FnMut(PullEvent<'_>) + Send),
) -> Result<Pulled, PullError> {
    let name = Name::parse(&options.name)?;
    let registry = Registry::new(options, &name)?;
    let manifest = registry.manifest(events).await?;
    let model = manifest.model()?;
    fs::create_dir_all(&options.folder).map_err(|error| {
        let is_file = options.folder.is_file();
        let no_folder = || io::Error::new(io::ErrorKind::NotADirectory, "a file, and no folder");
        PullError::io(&options.folder)(if is_file { no_folder() } else { error })
    })?;
    let path = options.folder.join(format!("{}.gguf", name.stem));
    let part = options.folder.join(format!("{}.gguf.part", name.stem));
    let mut was_here = is_here(&path, &model, options.force, events)?;
    let license = options.folder.join(format!("{}.license.txt", name.stem));
    let has_license = save_license(&registry, &manifest, &license, options, events).await?;
    if !was_here {
        let mut part = PartFile::lock(&part)?;
        // Another process may have put it there since.
        was_here = is_here(&path, &model, options.force, events)?;
        if !was_here {
            part.check_space(model.size, &options.folder)?;
            fetch(&registry, &model, &mut part, options, events).await?;
            part.put(&path, options.force)?;
        }
    }
    let license = has_license.then_some(license);
    Ok(Pulled { path, bytes: model.size, license, was_here })
}

/// Whether the file is here.
///
/// # Errors
/// [`PullError::Exists`] if there is another one that must not be replaced, [`PullError::Io`].
fn is_here(path: &Path, model: &Layer, force: bool, events: Events<'_>) -> Result<bool, PullError> {
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A link to nowhere is found at the end only, after the download.
            return match fs::symlink_metadata(path) {
                Ok(_) => Err(PullError::Exists { path: path.to_owned() }),
                Err(_) => Ok(false),
            };
        }
        found => found.map_err(PullError::io(path))?,
    };
    let is_here = found.is_file()
        && found.len() == model.size
        && has_digest(path, model, events).map_err(PullError::io(path))?;
    if !is_here && (found.is_dir() || !force) {
        return Err(PullError::Exists { path: path.to_owned() });
    }
    Ok(is_here)
}

/// Fetches the texts of the licence. Returns whether there is one.
async fn save_license(
    registry: &Registry<'_>,
    manifest: &registry::Manifest,
    path: &Path,
    options: &PullOptions,
    events: Events<'_>,
) -> Result<bool, PullError> {
    let mut text = Vec::new();
    for layer in manifest.licenses()? {
        if !text.is_empty() {
            text.extend_from_slice(b"\n\n");
        }
        text.extend(registry.text(&layer, events).await?);
    }
    if text.is_empty() {
        return Ok(false);
    }
    events(PullEvent::License(&String::from_utf8_lossy(&text)));
    let io = PullError::io(path);
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
        // Reading a pipe would wait.
        Ok(found) if !found.is_file() => return Err(PullError::Exists { path: path.to_owned() }),
        Ok(_) if fs::read(path).map_err(&io)? == text => return Ok(true),
        Ok(_) if !options.force => return Err(PullError::Exists { path: path.to_owned() }),
        Ok(_) => {}
    }
    replace(path, |file| io::Write::write_all(file, &text), |error| error).map_err(io)?;
    Ok(true)
}

/// Completes the partial file, and checks its content.
async fn fetch(
    registry: &Registry<'_>,
    model: &Layer,
    part: &mut PartFile,
    options: &PullOptions,
    events: Events<'_>,
) -> Result<(), PullError> {
    part.read_whole(model.size, events)?;
    // Content of an earlier call may be of another version of the model.
    let mut is_all_new = part.bytes() == 0;
    loop {
        let mut attempts = Attempts::new(&options.retries);
        // The most that was here: a server without ranges begins again each time, and an attempt
        // that comes no further is no progress.
        let mut most = part.bytes();
        while part.bytes() < model.size {
            let Err(failure) = registry.append(model, part, events).await else { continue };
            if part.bytes() >= most + Attempts::NEW_COUNT_BYTES {
                attempts = Attempts::new(&options.retries);
            }
            most = most.max(part.bytes());
            attempts.pause(failure, events).await?;
        }
        let found = part.digest();
        if found == model.sha256 {
            return Ok(());
        }
        part.restart()?;
        if is_all_new {
            return Err(PullError::WrongDigest { expected: model.sha256.clone(), found });
        }
        events(PullEvent::Restart);
        is_all_new = true;
    }
}
