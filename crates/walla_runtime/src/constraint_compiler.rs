//! The compiler of a model's constraints. The tables of its vocabulary are prepared on a thread
//! while the weights are loaded, or by the first constrained reply.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use walla_cpu::priority::spawn;
use walla_grammar::{Compiler, CompilerOptions, Vocabulary, VocabularyError};
use walla_model::tokenizer::Tokenizer;

/// Minimum number of tokens for a preparation while loading. The tables of fewer take some 20 ms,
/// for which the first constrained reply can wait.
const PREPARED_TOKENS_MIN: usize = 16_384;

/// The compiler of a model, shared by its devices. It is built once.
#[derive(Debug)]
pub(crate) struct ConstraintCompiler {
    shared: Arc<Shared>,
    /// Builds the tables. The engine does not wait for its end when it is dropped: the work is
    /// bounded.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    tokenizer: Arc<Tokenizer>,
    compiler: OnceLock<Result<Compiler, Arc<VocabularyError>>>,
    /// Names of the threads that built the tables.
    #[cfg(test)]
    builders: Mutex<Vec<String>>,
}

impl Shared {
    fn compiler(&self) -> Result<&Compiler, &Arc<VocabularyError>> {
        let compiler = self.compiler.get_or_init(|| {
            #[cfg(test)]
            if let Ok(mut builders) = self.builders.lock() {
                builders.push(std::thread::current().name().unwrap_or_default().to_owned());
            }
            let vocabulary = Vocabulary::new(Arc::clone(&self.tokenizer));
            let options = CompilerOptions::default();
            vocabulary.map(|vocabulary| Compiler::new(vocabulary, options)).map_err(Arc::new)
        });
        compiler.as_ref()
    }
}

impl ConstraintCompiler {
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let shared = Shared {
            tokenizer,
            compiler: OnceLock::new(),
            #[cfg(test)]
            builders: Mutex::default(),
        };
        Self { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Starts to prepare the tables of a large vocabulary on a thread. Without a thread, the first
    /// constrained reply prepares them.
    pub fn prepare(&self) {
        if self.shared.tokenizer.vocab_size() < PREPARED_TOKENS_MIN {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let work = move || {
            // Replies report the error.
            let _prepared = shared.compiler();
        };
        let thread = spawn("walla-tables", work);
        match thread {
            Ok(thread) => *self.thread() = Some(thread),
            Err(error) => {
                tracing::debug!(target: "walla::load", %error, "no thread for the tables of constraints");
            }
        }
    }

    /// Waits for the end of a preparation.
    pub fn wait(&self) {
        let thread = self.thread().take();
        if let Some(thread) = thread {
            // A panic is caught by the vocabulary; without tables the first reply tries again.
            let _ended = thread.join();
        }
    }

    /// The compiler. The first call prepares the tables, and others wait for them.
    pub fn get(&self) -> Result<&Compiler, &Arc<VocabularyError>> {
        self.shared.compiler()
    }

    /// The compiler, if the tables are prepared.
    pub fn prepared(&self) -> Option<&Compiler> {
        self.shared.compiler.get()?.as_ref().ok()
    }

    fn thread(&self) -> std::sync::MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use walla_doubles::synth::{self, Mixture, Model};
    use walla_grammar::Constraint;
    use walla_model::Gguf;

    use super::*;

    fn tokenizer(vocab: u32) -> Arc<Tokenizer> {
        let shape = Model { vocab, width: 32, heads: 1, kv_heads: 1, ..Model::TINY };
        let file = synth::write(&shape, Mixture::Q8_0, 7, Vec::new()).expect("a sound shape");
        let file = Gguf::from_static(Vec::leak(file)).expect("a sound file");
        Arc::new(Tokenizer::from_gguf(&file).expect("a sound vocabulary"))
    }

    fn builders(compiler: &ConstraintCompiler) -> Vec<String> {
        compiler.shared.builders.lock().expect("no thread panics").clone()
    }

    /// Threads that need a constraint wait for them and do not build them.
    #[test]
    fn the_tables_of_a_large_vocabulary_are_built_once_on_their_thread() {
        let compiler = ConstraintCompiler::new(tokenizer(PREPARED_TOKENS_MIN as u32));
        compiler.prepare();
        compiler.wait();
        assert!(compiler.prepared().is_some(), "before anything needs them");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let shared = compiler.get().expect("a usable vocabulary");
                    shared.compile(&Constraint::regex("[ab]+")).expect("a sound constraint");
                });
            }
        });
        assert_eq!(builders(&compiler), ["walla-tables"]);
        assert_eq!(compiler.prepared().map(Compiler::compilations), Some(1));
        assert!(compiler.prepared().is_some_and(|compiler| compiler.bytes() > 1 << 20));
    }

    #[test]
    fn the_tables_of_a_small_vocabulary_are_built_when_they_are_needed() {
        let compiler = ConstraintCompiler::new(tokenizer(300));
        compiler.prepare();
        compiler.wait();
        assert!(compiler.prepared().is_none() && builders(&compiler).is_empty());
        assert!(compiler.get().is_ok() && compiler.get().is_ok());
        assert_eq!(builders(&compiler).len(), 1);
    }
}
