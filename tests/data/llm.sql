CREATE TABLE [conversations] ([id] TEXT PRIMARY KEY, [name] TEXT, [model] TEXT);
CREATE TABLE [responses] (
  [id] TEXT PRIMARY KEY, [model] TEXT, [prompt] TEXT, [system] TEXT, [prompt_json] TEXT, [options_json] TEXT,
  [response] TEXT, [response_json] TEXT, [conversation_id] TEXT REFERENCES [conversations]([id]),
  [duration_ms] INTEGER, [datetime_utc] TEXT, [input_tokens] INTEGER, [output_tokens] INTEGER
);
CREATE TABLE [fragments] ([id] INTEGER PRIMARY KEY, [hash] TEXT, [content] TEXT, [datetime_utc] TEXT, [source] TEXT);
CREATE TABLE [prompt_fragments] ([response_id] TEXT, [fragment_id] INTEGER, [order] INTEGER);
CREATE TABLE [system_fragments] ([response_id] TEXT, [fragment_id] INTEGER, [order] INTEGER);
INSERT INTO conversations VALUES ('01c', 'Names for a boat', 'tiny');
INSERT INTO responses VALUES
  ('01r1', 'tiny', 'Three names for a boat', 'Be short.', NULL, '{}', 'Gull, Foam, Ada', NULL, '01c', 812, '2024-02-03T04:05:06.700000', 9, 8),
  ('01r2', 'tiny', 'And one more', 'Be short.', NULL, '{}', 'Brine', NULL, '01c', 400, '2024-02-03T04:06:00.000000+00:00', 20, 3);
INSERT INTO fragments VALUES (1, 'h', 'It is a small boat.', NULL, 'boat.txt');
INSERT INTO prompt_fragments VALUES ('01r1', 1, 0);
