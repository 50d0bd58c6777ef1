CREATE TABLE settings (id INTEGER PRIMARY KEY CHECK (id = 1), schema_version INTEGER NOT NULL DEFAULT 18);
CREATE TABLE chats (
  id TEXT PRIMARY KEY, title TEXT NOT NULL DEFAULT '', created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  browser_state TEXT
);
CREATE TABLE messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, chat_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL DEFAULT '',
  thinking TEXT NOT NULL DEFAULT '', stream BOOLEAN NOT NULL DEFAULT 0, model_name TEXT,
  created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
  tool_result TEXT, FOREIGN KEY (chat_id) REFERENCES chats(id) ON DELETE CASCADE
);
CREATE TABLE attachments (
  id INTEGER PRIMARY KEY AUTOINCREMENT, message_id INTEGER NOT NULL, filename TEXT NOT NULL, data BLOB NOT NULL
);
INSERT INTO chats VALUES ('0198', 'Tides', '2025-08-01 09:00:00.123456789+02:00', NULL);
INSERT INTO messages (chat_id, role, content, thinking, model_name, created_at) VALUES
  ('0198', 'user', 'When is high tide?', '', NULL, '2025-08-01 09:00:01.5+02:00'),
  ('0198', 'assistant', '', 'I need to look it up.', 'qwen3:4b', '2025-08-01 09:00:02+02:00'),
  ('0198', 'tool', '{"tide": "12:30"}', '', NULL, '2025-08-01 09:00:03+02:00'),
  ('0198', 'assistant', 'At half past twelve.', '', 'qwen3:4b', '2025-08-01 09:00:04+02:00');
INSERT INTO attachments (message_id, filename, data) VALUES (1, 'harbour.png', x'89504e47');
