"""How the embedded model pocket is trained."""
