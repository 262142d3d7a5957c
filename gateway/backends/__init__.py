"""What the gateway knows of each llama-server, and which of them serve which model."""
