from weft_cli.main import main

main()
