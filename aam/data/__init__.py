"""Tables, trees and metadata: from files to batches."""
