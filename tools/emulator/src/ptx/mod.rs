//! PTX text to decoded kernels.
//!
//! It reads the PTX that nvcc 13 emits for walla's kernels: the instructions that they use, and no
//! others. An unknown instruction is an error of the kernel that contains it, with its line.
//! Source: the PTX ISA manual, version 8.3.

mod body;
mod decode;
mod items;
mod operand;
mod tokens;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use self::items::{Globals, Item};
use crate::machine::Code;

/// A decoded kernel, or the error.
type Decoded = Result<Arc<Kernel>, String>;

/// The text of one file. A kernel is decoded at its first lookup.
pub struct Module {
    target: u32,
    items: HashMap<String, Item>,
    globals: Arc<Globals>,
    decoded: Mutex<HashMap<String, Decoded>>,
}

/// An executable kernel.
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) param_bytes: usize,
    pub(crate) shared_bytes: u32,
    pub(crate) cluster: Option<u32>,
    pub(crate) max_threads: Option<u32>,
    pub(crate) code: Code,
    /// The module's variables; the code contains their addresses.
    pub(crate) globals: Arc<Globals>,
}

impl Module {
    /// Finds the kernels, functions and variables of a text.
    ///
    /// # Errors
    /// The text that was not understood, with its line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file = items::split(text)?;
        Ok(Self {
            target: file.target,
            items: file.items,
            globals: Arc::new(file.globals),
            decoded: Mutex::default(),
        })
    }

    /// The compute capability of the text's target: 75, 80, 90.
    #[must_use]
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Looks up and decodes a kernel; `None` if there is no such entry.
    ///
    /// # Errors
    /// The reason why it cannot be decoded.
    pub fn kernel(&self, name: &str) -> Option<Decoded> {
        let entry = self.items.get(name).filter(|item| item.is_entry)?;
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = decoded.entry(name.to_owned()).or_insert_with(|| {
            body::decode(entry, &self.items, &self.globals)
                .map(|(code, shared_bytes)| {
                    Arc::new(Kernel {
                        name: name.to_owned(),
                        param_bytes: entry.param_bytes(),
                        shared_bytes,
                        cluster: entry.cluster,
                        max_threads: entry.max_threads,
                        code,
                        globals: Arc::clone(&self.globals),
                    })
                })
                .map_err(|why| format!("{name}: {why}"))
        });
        Some(kernel.clone())
    }
}

impl Kernel {
    /// Size of its parameters in bytes.
    #[must_use]
    pub fn param_bytes(&self) -> usize {
        self.param_bytes
    }

    /// Size of its static shared memory in bytes.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("target", &self.target).finish_non_exhaustive()
    }
}
