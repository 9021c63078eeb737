//! Models of tenure's own protocols, searched exhaustively within stated bounds.
