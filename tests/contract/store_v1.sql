PRAGMA application_id = 1094930258;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE births (run INTEGER PRIMARY KEY, branch TEXT, input TEXT NOT NULL, overrides TEXT);
INSERT INTO "births" VALUES(1,NULL,'{"n": 1}',NULL);
CREATE TABLE entries (
      position INTEGER PRIMARY KEY, root INTEGER NOT NULL, run INTEGER NOT NULL, entry TEXT NOT NULL
    );
INSERT INTO "entries" VALUES(1,1,1,'0');
CREATE TABLE holders (
      id TEXT PRIMARY KEY, host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL,
      heard REAL NOT NULL, until REAL NOT NULL
    ) WITHOUT ROWID
    ;
INSERT INTO "holders" VALUES('00000000000000000000000000000000','host','boot 1',812,'77',1780000000.5,1780000000.5);
CREATE TABLE requests (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, root INTEGER NOT NULL, run TEXT NOT NULL,
      kind TEXT NOT NULL, question TEXT NOT NULL, tool TEXT NOT NULL, arguments TEXT NOT NULL, branch TEXT,
      choices TEXT, asked REAL NOT NULL, answer TEXT, answered REAL, turn INTEGER
    );
CREATE TABLE runs (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, root INTEGER, parent TEXT, agent TEXT NOT NULL,
      status TEXT NOT NULL, model TEXT, steps INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
      output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
      requests INTEGER NOT NULL, cost REAL, started REAL NOT NULL, updated REAL NOT NULL, seconds REAL NOT NULL,
      batch TEXT, item INTEGER, stop_reason TEXT, error TEXT, length INTEGER NOT NULL,
      holder TEXT, silence REAL NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,
      attempted INTEGER NOT NULL DEFAULT -1, is_unwanted INTEGER NOT NULL DEFAULT 0, asks INTEGER NOT NULL DEFAULT 0
    );
INSERT INTO "runs" VALUES(1,'kept',NULL,NULL,'desk:Desk','stopped','scripted',0,11,7,5,3,1,0.25,1780000000.5,1780000000.5,1.5,NULL,NULL,NULL,NULL,1,NULL,0.0,0,-1,0,0);
CREATE TABLE states (run INTEGER PRIMARY KEY, record TEXT NOT NULL, state TEXT NOT NULL);
INSERT INTO "states" VALUES(1,'{"record": 1}','{"state": 1}');
CREATE INDEX runs_by_time ON runs (started DESC, number DESC) WHERE root IS NULL;
CREATE INDEX runs_by_batch ON runs (batch, item) WHERE batch IS NOT NULL;
CREATE INDEX runs_by_root ON runs (root) WHERE root IS NOT NULL;
CREATE INDEX runs_by_holder ON runs (holder) WHERE holder IS NOT NULL;
CREATE INDEX entries_by_root ON entries (root);
CREATE INDEX requests_by_root ON requests (root);
CREATE INDEX requests_open ON requests (asked, number) WHERE answered IS NULL;
COMMIT;
