//! An embedded async LLM runtime for games and robots: async API and the walla command.
